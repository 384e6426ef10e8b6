"""aten operators as UOps: `lower` looks a call up in the tables of the families."""

from torch_tiny.lower.functional import has_lowering, is_heavy, lower, written
from torch_tiny.lower.promote import Lifted, NoLowering

__all__ = ["Lifted", "NoLowering", "has_lowering", "is_heavy", "lower", "written"]
