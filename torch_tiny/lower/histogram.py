"""Histograms: every bin looks at all elements."""

import functools
from collections.abc import Sequence

from torch_tiny.lower.arithmetic import less_equal
from torch_tiny.lower.conditions import require
from torch_tiny.lower.creation import linspace
from torch_tiny.lower.promote import Number, as_uop, cast, is_float
from torch_tiny.lower.reduce import amax, amin
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import arange, full, to_math, total
from torch_tiny.uops import UOp
from torch_tiny.views import cut, int_shape


def _members(x: UOp, edges: UOp) -> UOp:
    """(elements, bins): who is in which bin; the last one has its right edge."""
    bins = int_shape(edges)[0] - 1
    left, right = cut(edges, 0, 0, bins), cut(edges, 0, 1, bins + 1)
    v = x.unsqueeze(1)
    last = arange(bins).eq(bins - 1)
    return less_equal(left, v) & ((v < right) | (last & v.eq(right)))


def _counted(x: UOp, edges: Sequence[UOp], weight: UOp | None, density: bool) -> UOp:
    """Of the rows of x, one column per dimension of the histogram."""
    sizes = [int_shape(e)[0] - 1 for e in edges]
    n, k = int_shape(x)[0], len(edges)
    if n == 0:
        return full(sizes, 0, x.dtype)
    together: UOp | None = None
    for d, edge in enumerate(edges):
        member = _members(cut(x, 1, d, d + 1).reshape((n,)), edge)
        member = member.reshape((n, *(sizes[d] if e == d else 1 for e in range(k))))
        together = member if together is None else together & member
    assert together is not None
    share = full((1,), 1, x.dtype) if weight is None else cast(weight.reshape((-1,)), x.dtype)
    share = share.reshape((-1, *(1,) * k))
    counts = total(together.where(share, full((), 0, x.dtype)), (0,))
    if density:
        widths = [
            (cut(e, 0, 1, m + 1) - cut(e, 0, 0, m)).reshape((-1, *(1,) * (k - d - 1)))
            for d, (e, m) in enumerate(zip(edges, sizes, strict=True))
        ]
        volume = functools.reduce(lambda a, b: a * b, widths)
        counts = counts / total(counts, tuple(range(k))) / volume
    return counts


def _bounds(x: UOp, given: Sequence[Number] | None) -> tuple[UOp, UOp]:
    """The outer edges of a dimension; a single value is in the middle of its bin."""
    if given is not None:
        low, high = (as_uop(v, x.dtype) for v in given)
    elif 0 in x.shape:
        low, high = full((), 0, x.dtype), full((), 1, x.dtype)
    else:
        low, high = amin(x), amax(x)
    _require_range(low, high)
    same = low.eq(high)
    return same.where(low - 0.5, low), same.where(high + 0.5, high)


def _require_range(low: UOp, high: UOp) -> None:
    require((high < low).logical_not())
    if is_float(low.dtype):
        require(((high - low) * 0.0).eq(0))


def _histc(x: UOp, bins: int, low: Number, high: Number) -> UOp:
    flat = x.reshape((-1,))
    first, last = as_uop(low, x.dtype), as_uop(high, x.dtype)
    if 0 not in x.shape:
        from_data = first.eq(last)
        first = from_data.where(amin(flat), first)
        last = from_data.where(amax(flat), last)
    _require_range(first, last)
    same = first.eq(last)
    first, last = same.where(first - 1.0, first), same.where(last + 1.0, last)
    edges = linspace(first, last, bins + 1, x.dtype)
    return cast(_counted(to_math(flat).unsqueeze(1), [to_math(edges)], None, False), x.dtype)


def _edges(x: UOp, bins: Sequence[int], limits: Sequence[Number] | None) -> list[UOp]:
    result = []
    for d, m in enumerate(bins):
        column = cut(x, 1, d, d + 1)
        own = None if limits is None else limits[2 * d : 2 * d + 2]
        result.append(linspace(*_bounds(column, own), m + 1, x.dtype))
    return result


def _histogram(x: UOp, bins: int, limits: Sequence[Number] | None, weight: UOp | None,
               density: bool) -> Results:  # fmt: skip
    rows = x.reshape((-1, 1))
    edges = _edges(rows, [bins], limits)
    return _counted(rows, edges, weight, density), edges[0]


def _rows(x: UOp) -> UOp:
    return x.reshape((-1, int_shape(x)[-1]))


TABLE: Table = {
    "histc": _histc,
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": lambda x, edges, weight, density: (
        _counted(x.reshape((-1, 1)), [edges], weight, density),
        edges,
    ),
    "_histogramdd_bin_edges": lambda x, bins, limits, *_: tuple(_edges(_rows(x), bins, limits)),
    "_histogramdd_from_bin_cts": lambda x, bins, limits, weight, density: _counted(
        _rows(x), _edges(_rows(x), bins, limits), weight, density
    ),
    "_histogramdd_from_bin_tensors": lambda x, edges, weight, density: _counted(
        _rows(x), edges, weight, density
    ),
}
