"""Masks that pick elements by counting: the i-th true element takes or gives the i-th value."""

import math
from collections.abc import Sequence

from torch_tiny.lower.arithmetic import maximum, minimum
from torch_tiny.lower.complex_parts import by_parts
from torch_tiny.lower.conditions import require
from torch_tiny.lower.index import place, take
from torch_tiny.lower.movement import concatenate
from torch_tiny.lower.promote import cast
from torch_tiny.lower.reduce import cumsum, sums
from torch_tiny.lower.rule import Function, Rule, Table, heavy, rules
from torch_tiny.lower.shapes import arange, full, full_like
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import ViewSpec, int_shape


def ranks(mask: UOp) -> UOp:
    """For each element of a 1-d mask how many true ones are before it."""
    return cumsum(mask.cast(dtypes.int32), 0, dtypes.int32) - mask.cast(dtypes.int32)


def scattered(x: UOp, mask: UOp, source: UOp) -> UOp:
    """Rows of x where a 1-d mask is true, replaced by the rows of source in turn."""
    count = int_shape(source)[0]
    require(sums(mask.cast(dtypes.int32)) <= count)
    if count == 0 or 0 in x.shape:
        return x
    order = minimum(ranks(mask), full_like(mask, count - 1, dtypes.int32))
    rows = take(source, 0, maximum(order, full_like(order, 0)))
    return mask.reshape((-1, *(1,) * (x.ndim - 1))).where(rows, x)


def _masked_scatter(x: UOp, mask: UOp, source: UOp) -> UOp:
    flat = cast(mask, dtypes.bool).expand(int_shape(x)).reshape((-1,))
    values = cast(source, x.dtype).reshape((-1,))
    return scattered(x.reshape((-1,)), flat, values).reshape(int_shape(x))


def _masked_scatter_backward(grad: UOp, mask: UOp, sizes: Sequence[int]) -> UOp:
    """What went to the true elements, in turn; zeros for what was left over."""
    n = math.prod(sizes)
    if n == 0 or 0 in grad.shape:
        return full(sizes, 0, grad.dtype)
    flat = mask.expand(int_shape(grad)).reshape((-1,))
    kept = flat.where(grad.reshape((-1,)), full((), 0, grad.dtype))
    order = minimum(ranks(flat), full_like(flat, n - 1, dtypes.int32))
    # A false element adds nothing wherever it is put.
    return place(kept, 0, order, n).reshape(tuple(sizes))


def nonzero_static(x: UOp, size: int, fill: int) -> UOp:
    """The positions of the first `size` elements that are not 0, one per row."""
    shape = int_shape(x)
    if 0 in (size, *shape) or not shape:
        return full((size, len(shape)), fill, dtypes.int64)
    mask = cast(x, dtypes.bool).reshape((-1,))
    order = mask.where(ranks(mask), full((), -1, dtypes.int32))
    hit = order.eq(arange(size).unsqueeze(1))
    at = hit.where(arange(math.prod(shape)) + 1, full((), 0, dtypes.int32)).max((1,))
    steps = ViewSpec.contiguous(shape).strides
    columns = [((at - 1) // step % n).unsqueeze(1) for step, n in zip(steps, shape, strict=True)]
    found = concatenate(columns, 1).cast(dtypes.int64)
    return at.unsqueeze(1).ne(0).where(found, full((), fill, dtypes.int64))


_OF_PARTS: dict[str, Function] = {
    "masked_scatter": _masked_scatter,
    "masked_scatter_backward": _masked_scatter_backward,
}
TABLE: Table = {
    **rules(_OF_PARTS, heavy, by_parts),
    "nonzero_static": Rule(nonzero_static, cost=heavy),
}
