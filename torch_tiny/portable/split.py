"""Kernels with more buffers than a device allows become several, through temporaries."""

import math
from collections.abc import Callable, Iterator

from torch_tiny.engine.codegen_nest import Nest, stored_first
from torch_tiny.uops import DType, GroupOp, Ops, UOp, dtypes
from torch_tiny.uops.cascade import extent


def with_few_buffers(
    nest: Nest, most: int, new_buffer: Callable[[DType, int], UOp]
) -> Iterator[Nest]:
    """The nest in parts of at most `most` buffers each, where it can be split."""
    while len(_buffers(nest.sink())) > most and (part := _largest_part(nest, most)) is not None:
        loops = tuple(loop for loop in nest.loops if loop in part.ranges)
        first, nest = stored_first(nest, part, loops, new_buffer)
        yield first
    yield nest


def _largest_part(nest: Nest, most: int) -> UOp | None:
    """What takes most buffers with it, and the least memory to keep."""
    parts = [
        u
        for u in nest.value.toposort(gate=lambda u: u.op is not Ops.INDEX)
        if (u.op in GroupOp.Elementwise or u.op is Ops.REDUCE)
        and u.dtype in _KEPT
        and all(r in nest.loops for r in u.ranges)
        and 1 < len(_buffers(u)) < most
    ]
    return max(
        parts, key=lambda u: (len(_buffers(u)), -math.prod(map(extent, u.ranges))), default=None
    )


def _buffers(u: UOp) -> set[UOp]:
    return {x for x in u.toposort() if x.op is Ops.PARAM}


_KEPT = (dtypes.bool, *dtypes.ints, *dtypes.floats)
