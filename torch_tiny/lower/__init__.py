"""aten operators as UOps: `lower` looks a call up in the tables of the families."""

from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.registry import has_lowering, is_heavy, lower, written

__all__ = ["Lifted", "NoLowering", "has_lowering", "is_heavy", "lower", "written"]
