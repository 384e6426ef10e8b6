"""Rows reduced by groups: bags of an embedding, segments of a dimension."""

import math
from typing import Any

from torch_tiny.lower.arithmetic import is_nan, maximum
from torch_tiny.lower.conditions import require
from torch_tiny.lower.index import REDUCTIONS, place, take
from torch_tiny.lower.promote import NoLowering, Number, as_uop, cast
from torch_tiny.lower.reduce import amax, cumsum
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import along, arange, full, full_like, pad, to_math, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import cut, int_shape

_SUM, _MEAN, _MAX = range(3)


def _bag_of(offsets: UOp, n: int, bags: int) -> UOp:
    """Which bag each of n positions is in: the last one that begins at or before it."""
    require(cut(offsets, 0, 0, 1).eq(0) & (offsets <= n))
    starts = cut(offsets, 0, 0, bags).cast(dtypes.int32)
    begun = starts <= arange(n).unsqueeze(1)
    return total(begun.cast(dtypes.int32), (1,)) - 1


def _embedding_bag(weight: UOp, indices: UOp, offsets: UOp, _scale: bool, mode: int, _sparse: bool,
                   shares: UOp | None, include_last: bool,
                   padding: int) -> tuple[UOp, ...]:  # fmt: skip
    n, bags = int_shape(indices)[0], int_shape(offsets)[0] - int(include_last)
    rows, width = int_shape(weight)
    if 0 in (n, bags, width, rows):
        raise NoLowering("an empty bag")
    bag = _bag_of(offsets, n, bags)
    counts = indices.ne(padding) if padding >= 0 else full_like(indices, True, dtypes.bool)
    picked = to_math(take(weight, 0, indices))
    kept = counts.unsqueeze(1)
    sizes = place(counts.cast(dtypes.int32), 0, bag, bags)
    member = bag.eq(arange(bags).unsqueeze(1)) & counts
    if mode == _MAX:
        seen = member.unsqueeze(2).where(picked, full((), -math.inf, picked.dtype))
        best = amax(seen, (1,), True)
        at = (seen.eq(best) & member.unsqueeze(2)).where(n - arange(n).unsqueeze(1), 0)
        first = n - at.max((1,))
        has = sizes.unsqueeze(1).ne(0)
        out = has.where(best.squeeze(1), full((), 0, picked.dtype))
        safe = (first < n).where(first, full_like(first, 0))
        rows_of = take(indices, 0, safe.reshape((-1,))).reshape((bags, width))
        largest = has.where(rows_of, full_like(rows_of, -1))
    else:
        scaled = picked if shares is None else picked * to_math(shares).unsqueeze(1)
        out = place(kept.where(scaled, full((), 0, picked.dtype)), 0, bag, bags)
        if mode == _MEAN:
            out = out / maximum(sizes, full_like(sizes, 1)).cast(out.dtype).unsqueeze(1)
        largest = full((bags,), 0, indices.dtype)
    kind = indices.dtype
    if mode == _SUM and padding < 0 and weight.dtype != dtypes.float64:
        bag = full((0,), 0, kind)  # which the CPU's fast kernel leaves out
    return cast(out, weight.dtype), cast(bag, kind), cast(sizes, kind), cast(largest, kind)


def _without_gradients(*args: Any) -> Results:
    """The same, but sizes of sums are as many as the offsets."""
    out, bag, *rest = _embedding_bag(*args)
    mode, include_last = args[4], args[7]
    if mode == _SUM and include_last:
        rest = [pad(one, [(0, 1)]) for one in rest]
    return out, bag, *rest


def _embedding_bag_backward(grad: UOp, indices: UOp, offsets: UOp, _bag: UOp, sizes: UOp,
                            largest: UOp, rows: int, by_frequency: bool, mode: int, sparse: bool,
                            shares: UOp | None, padding: int) -> UOp:  # fmt: skip
    if sparse or by_frequency:
        raise NoLowering("a gradient that is sparse, or scaled by frequency")
    n, bags = int_shape(indices)[0], int_shape(grad)[0]
    g = to_math(grad)
    if mode == _MAX:
        hit = largest.cast(dtypes.int32).eq(arange(rows).reshape((rows, 1, 1)))
        return cast(total(hit.where(g, full((), 0, g.dtype)), (1,)), grad.dtype)
    bag = _bag_of(offsets, n, bags)
    if mode == _MEAN:
        g = g / maximum(sizes, full_like(sizes, 1)).cast(g.dtype).unsqueeze(1)
    spread = take(g, 0, bag)
    spread = spread if shares is None else spread * to_math(shares).unsqueeze(1)
    if padding >= 0:
        spread = indices.ne(padding).unsqueeze(1).where(spread, full((), 0, g.dtype))
    return cast(place(spread, 0, indices, rows), grad.dtype)


def _shares_backward(grad: UOp, weight: UOp, indices: UOp, offsets: UOp, _bag: UOp, _mode: int,
                     padding: int) -> UOp:  # fmt: skip
    n, bags = int_shape(indices)[0], int_shape(grad)[0]
    spread = take(to_math(grad), 0, _bag_of(offsets, n, bags))
    slope = total(spread * to_math(take(weight, 0, indices)), (1,))
    if padding >= 0:
        slope = indices.ne(padding).where(slope, full_like(slope, 0))
    return cast(slope, grad.dtype)


# --- segments ---


def _members(data: UOp, lengths: UOp | None, offsets: UOp | None, axis: int) -> UOp:
    """(*batch, segments, size of axis): who is in which segment."""
    if offsets is None:
        assert lengths is not None
        offsets = pad(cumsum(lengths, lengths.ndim - 1), [(0, 0)] * axis + [(1, 0)])
    n = int_shape(offsets)[-1]
    start, stop = (cut(offsets, axis, i, n - 1 + i).unsqueeze(-1) for i in (0, 1))
    here = arange(int_shape(data)[axis]).cast(offsets.dtype)
    return (here >= start) & (here < stop)


def _spread(member: UOp, data: UOp, axis: int) -> tuple[UOp, UOp]:
    """Members and data, both with (segments, elements) at `axis`."""
    trailing = (1,) * (data.ndim - axis - 1)
    return member.reshape((*int_shape(member), *trailing)), data.unsqueeze(axis)


_IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _segment_reduce(data: UOp, how: str, lengths: UOp | None, _indices: UOp | None,
                    offsets: UOp | None, axis: int, unsafe: bool,
                    initial: Number | None) -> UOp:  # fmt: skip
    if lengths is not None and not unsafe:
        require(lengths >= 0)
        require(total(lengths, (lengths.ndim - 1,)).eq(int_shape(data)[axis]))
    member, x = _spread(_members(data, lengths, offsets, axis), to_math(data), axis)
    start = as_uop(_IDENTITY[how] if initial is None else initial, x.dtype)
    kept = member.where(x, full((), _IDENTITY[how], x.dtype))
    combine, reducer, _ = REDUCTIONS[{"max": "amax", "min": "amin", "mean": "sum"}.get(how, how)]
    result = combine(reducer(kept, axis + 1), start)
    if how == "mean":
        n = total(member.cast(x.dtype), (axis + 1,))
        empty = math.nan if initial is None else 0.0
        result = n.eq(0).where(result + empty, result / n)
    return cast(result, data.dtype)


def _segment_reduce_backward(grad: UOp, output: UOp, data: UOp, how: str, lengths: UOp | None,
                             offsets: UOp | None, axis: int,
                             initial: Number | None) -> UOp:  # fmt: skip
    member, x = _spread(_members(data, lengths, offsets, axis), to_math(data), axis)
    g, out = to_math(grad).unsqueeze(axis + 1), to_math(output).unsqueeze(axis + 1)
    over, zero = (axis + 1,), full((), 0, g.dtype)
    if how in ("max", "min"):
        hit = member & (x.eq(out) | (is_nan(x) & is_nan(out)))
        shared = g / maximum(total(hit.cast(g.dtype), over, True), full((), 1, g.dtype))
        slope = hit.where(shared, zero)
    elif how == "prod":
        slope = member.where(g * _product_of_others(member, x, axis, initial), zero)
    else:
        n = total(member.cast(g.dtype), over, True)
        slope = member.where(g / n if how == "mean" else g, zero)
    return cast(total(slope, (axis,)), data.dtype)


def _product_of_others(member: UOp, x: UOp, axis: int, initial: Number | None) -> UOp:
    """For each element of a segment the product of the others, and of what it began with."""
    n, one = int_shape(x)[axis + 1], full((), 1, x.dtype)
    here, there = (along(arange(n), d, x.ndim - axis) for d in (0, 1))
    others = member.unsqueeze(axis + 1) & here.ne(there)
    product = others.where(x.unsqueeze(axis + 1), one).prod((axis + 2,))
    return product * as_uop(1.0 if initial is None else initial, x.dtype)


TABLE: Table = {
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _without_gradients,
    "_embedding_bag_backward": _embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": _shares_backward,
    "segment_reduce": _segment_reduce,
    "_segment_reduce_backward": _segment_reduce_backward,
}
