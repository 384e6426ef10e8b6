"""Small things to do with UOps: make, replace and simplify them."""

import itertools
from collections.abc import Mapping
from typing import cast

from tinygrad.codegen import pm_expand_broadcast
from tinygrad.dtype import DType
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp, graph_rewrite

from torch_tiny.uops.rules import symbolic

DEVICE = "CPU"


def constant(value: float, dtype: DType) -> UOp:
    """A number of shape ()."""
    return cast(UOp, UOp.const(value, dtype))


def buffer_param(slot: int, dtype: DType, size: int) -> UOp:
    """Buffer `slot` of a region, flat."""
    return cast(UOp, UOp.param(slot, dtype, (size,), DEVICE))


def simplified(u: UOp) -> UOp:
    """Of a number: the rules forget shapes, as that of a choice between two equal ones."""
    return cast(UOp, graph_rewrite(u, symbolic))


def folded(u: UOp) -> UOp:
    """The same of a value with a shape, which each operand is given first."""
    return simplified(graph_rewrite(u, pm_expand_broadcast))


def sink_of(*effects: UOp) -> UOp:
    return cast(UOp, UOp.sink(*effects))


def substituted(u: UOp, by: Mapping[UOp, UOp]) -> UOp:
    return cast(UOp, u.substitute(dict(by)))


def new_numbers(u: UOp) -> "itertools.count[int]":
    """Of loops that are inside of all that it has."""
    used = (x.arg[0] for x in u.toposort() if x.op is Ops.RANGE)
    return itertools.count(1 + max(used, default=0))


def stride(load: UOp, loop: UOp) -> int | None:
    """How far the load moves with the first step of the loop; None if that varies."""
    return step(load.src[1].get_idx(), loop)


def step(index: UOp, loop: UOp) -> int | None:
    """The same of an index."""
    first, second = (substituted(index, {loop: loop.const_like(k)}) for k in (0, 1))
    moved = simplified(second - first)
    return moved.arg if moved.op is Ops.CONST and isinstance(moved.arg, int) else None
