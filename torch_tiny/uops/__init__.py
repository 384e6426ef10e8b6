"""The one door to tinygrad: its UOps, and what is done with them.

sealed, floats, wrapping, integers: operators that tinygrad's algebra leaves alone. scheduling: from
values to kernels. passes: from kernels to lines, with rules, merge, reductions, cascade. source,
threads, device: kernels of the devices that tinygrad drives.
"""

from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.helpers import Target
from tinygrad.renderer import Renderer
from tinygrad.uop import GroupOp, Ops
from tinygrad.uop.ops import AxisType, PatternMatcher, UOp, UPat, graph_rewrite, identity_element

from torch_tiny.uops.expressions import (
    buffer_param,
    constant,
    folded,
    new_numbers,
    simplified,
    sink_of,
    step,
    stride,
    substituted,
)
from torch_tiny.uops.rewriting import compiling
from torch_tiny.uops.routines import Routine, routine_of, routine_results
from torch_tiny.uops.sealed import call, called_name, combined

__all__ = [
    "AddrSpace", "AxisType", "DType", "GroupOp", "Ops", "PatternMatcher", "Renderer", "Routine",
    "Target", "UOp", "UPat", "buffer_param", "call", "called_name", "combined", "compiling",
    "constant", "dtypes", "folded", "graph_rewrite", "identity_element", "new_numbers",
    "routine_of", "routine_results", "simplified", "sink_of", "step", "stride", "substituted",
]  # fmt: skip
