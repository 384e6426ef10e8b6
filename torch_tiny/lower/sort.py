"""Sorting by counting: an element's place is how many come before it. Quadratic, but parallel.

Long dimensions go through a network of comparisons instead (sorting_network.py).
"""

import math
from collections.abc import Callable
from functools import partial

from torch_tiny.lower import sorting_network
from torch_tiny.lower.arithmetic import is_nan, less_equal
from torch_tiny.lower.index import gather
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import Number, as_uop, math_dtype, result_dtype
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import arange, full, positions, total, wrap_dim
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import cut, int_shape

Pair = tuple[UOp, UOp]
_SHORT = 1024


def sort(x: UOp, dim: int, descending: bool) -> Pair:
    """Stable. NaN is the greatest."""
    if x.ndim == 0 or 0 in x.shape:
        return x, full(int_shape(x), 0, dtypes.int64)
    dim = wrap_dim(dim, x.ndim)
    n = int_shape(x)[dim]
    if n > _SHORT:
        index = sorting_network.order(x, dim, descending)
        return gathered(x, dim, index), index.cast(dtypes.int64)
    place = arange(n).reshape((n, 1, *(1,) * (x.ndim - dim - 1)))
    return _at_rank(x, dim, _ranks(x, dim, descending).unsqueeze(dim).eq(place))


def _ranks(x: UOp, dim: int, descending: bool = False) -> UOp:
    x = x.cast(dtypes.uint8) if x.dtype == dtypes.bool else x
    mine, other = x.unsqueeze(dim + 1), x.unsqueeze(dim)
    after, before = _precedes(mine, other), _precedes(other, mine)
    if descending:
        after, before = before, after
    n = int_shape(x)[dim]
    trailing = (1,) * (x.ndim - dim - 1)
    earlier = arange(n).reshape((1, n, *trailing)) < arange(n).reshape((n, 1, *trailing))
    ahead = before | (after.logical_not() & earlier)
    return total(ahead.cast(dtypes.int32), (dim + 1,))


def _precedes(a: UOp, b: UOp) -> UOp:
    return (a < b) | (is_nan(b) & is_nan(a).logical_not())


def _at_rank(x: UOp, dim: int, hit: UOp) -> Pair:
    """The elements that `hit` picks along a dimension after `dim`, and where they were."""
    at = positions(int_shape(x), dim).unsqueeze(dim)
    index = total(hit.where(at, full((), 0, dtypes.int32)), (dim + 1,))
    return gathered(x, dim, index), index.cast(dtypes.int64)


def _chosen(x: UOp, dim: int, keepdim: bool, rank: Callable[[int, UOp], UOp | int]) -> Pair:
    """The element of one rank, which may depend on how many NaN there are."""
    if x.ndim == 0:
        return x, full((), 0, dtypes.int64)
    dim = wrap_dim(dim, x.ndim)
    n = int_shape(x)[dim]
    nans = total(is_nan(x).cast(dtypes.int32), (dim,), True)
    if n > _SHORT:
        at = as_uop(rank(n, nans), dtypes.int32).expand(int_shape(nans))
        index = gathered(sorting_network.order(x, dim, False), dim, at)
        return _kept((gathered(x, dim, index), index.cast(dtypes.int64)), dim, keepdim)
    hit = _ranks(x, dim).eq(rank(n, nans))
    return _kept(_at_rank(x, dim, hit.unsqueeze(dim)), dim, keepdim)


def _kept(pair: Pair, dim: int, keepdim: bool) -> Pair:
    return pair if keepdim else (pair[0].squeeze(dim), pair[1].squeeze(dim))


def _median_rank(n: int, nans: UOp) -> UOp:
    return nans.ne(0).where(n - nans, full((), (n - 1) // 2, dtypes.int32))


def _nan_median_rank(n: int, nans: UOp) -> UOp:
    return nans.eq(n).where(full((), 0, dtypes.int32), (n - nans - 1) // 2)


def _median_of_all(rank: Callable[[int, UOp], UOp], x: UOp) -> UOp:
    if 0 in x.shape:
        return full((), math.nan, x.dtype)
    return _chosen(x.reshape((-1,)), 0, False, rank)[0]


def _topk(x: UOp, k: int, dim: int, largest: bool, _sorted: bool) -> Pair:
    values, index = sort(x, dim, largest)
    dim = wrap_dim(dim, x.ndim)
    return cut(values, dim, 0, k), cut(index, dim, 0, k)


def _mode(x: UOp, dim: int, keepdim: bool) -> Pair:
    """The most frequent value, of several the least; its last place."""
    if x.ndim == 0:
        return x, full((), 0, dtypes.int64)
    dim = wrap_dim(dim, x.ndim)
    same = total(x.unsqueeze(dim).eq(x.unsqueeze(dim + 1)).cast(dtypes.int32), (dim + 1,))
    often = same.eq(same.max((dim,), keepdim=True))
    n = int_shape(x)[dim]
    ranks = _ranks(x, dim)
    least = often.where(n - ranks, full((), 0, dtypes.int32)).max((dim,), keepdim=True)
    chosen, _ = _at_rank(x, dim, (ranks.eq(n - least)).unsqueeze(dim))
    at = x.eq(chosen).where(positions(int_shape(x), dim), full((), 0, dtypes.int32))
    index = at.max((dim,), keepdim=True).cast(dtypes.int64)
    return _kept((chosen, index), dim, keepdim)


def _is_in(elements: UOp | Number, tests: UOp | Number, _unique: bool, invert: bool) -> UOp:
    dtype = result_dtype(elements, tests)
    a, b = as_uop(elements, dtype), as_uop(tests, dtype).reshape((-1,))
    shape = int_shape(a)
    if 0 in (*shape, *int_shape(b)):
        return full(shape, invert, dtypes.bool)
    found = a.reshape((*shape, 1)).eq(b).max((len(shape),))
    return found.logical_not() if invert else found


def _search(
    boundaries: UOp, values: UOp | Number, small: bool, right: bool, side: str | None = None,
    sorter: UOp | None = None,
) -> UOp:  # fmt: skip
    """How many boundaries are less than each value (or not greater: right)."""
    if sorter is not None:
        boundaries = gather(boundaries, -1, sorter)
    dtype = math_dtype(result_dtype(boundaries, values))
    v, b = as_uop(values, dtype), as_uop(boundaries, dtype)
    kind = dtypes.int32 if small else dtypes.int64
    if 0 in (*v.shape, *b.shape):
        return full(int_shape(v), 0, kind)
    if b.ndim > 1:
        b = b.unsqueeze(-2)
    v = v.reshape((*int_shape(v), 1))
    below = (v < b) if right or side == "right" else less_equal(v, b)
    return total(below.logical_not().cast(dtypes.int32), (max(v.ndim, b.ndim) - 1,)).cast(kind)


TABLE: Table = {
    "sort": sort,
    "sort.stable": lambda x, _, dim, descending: sort(x, dim, descending),
    "argsort": lambda x, dim, descending: sort(x, dim, descending)[1],
    "argsort.stable": lambda x, _, dim, descending: sort(x, dim, descending)[1],
    "topk": _topk,
    "kthvalue": lambda x, k, dim, keepdim: _chosen(x, dim, keepdim, lambda *_: k - 1),
    "median": partial(_median_of_all, _median_rank),
    "nanmedian": partial(_median_of_all, _nan_median_rank),
    "median.dim": lambda x, dim, keepdim: _chosen(x, dim, keepdim, _median_rank),
    "nanmedian.dim": lambda x, dim, keepdim: _chosen(x, dim, keepdim, _nan_median_rank),
    "mode": _mode,
    **dict.fromkeys(("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor"), _is_in),
    **dict.fromkeys(("searchsorted.Tensor", "searchsorted.Scalar"), _search),
    **dict.fromkeys(
        ("bucketize.Tensor", "bucketize.Scalar"),
        lambda x, boundaries, *how: _search(boundaries, x, *how),
    ),
}
