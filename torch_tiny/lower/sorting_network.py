"""Batcher's bitonic sorting network: log2(n)^2 / 2 rounds of comparisons, all the same kernel."""

import functools
from collections.abc import Sequence

from torch_tiny.lower.arithmetic import is_nan
from torch_tiny.lower.movement import concatenate
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import is_float, math_dtype
from torch_tiny.lower.shapes import arange, full, full_like, pad, widths
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import cut, int_shape


def order(x: UOp, dim: int, descending: bool) -> UOp:
    """Where the elements of a sorted dimension come from. Stable, and NaN is the greatest."""
    last = x.ndim - 1
    rows = x.transpose(dim, last)
    n = int_shape(rows)[-1]
    key = _ordered(rows)
    key = ~key if descending else key
    place = arange(n).expand(int_shape(rows))
    length = 1 << (n - 1).bit_length()
    if key.dtype.itemsize <= 4:
        # One integer of 64 bits holds both.
        both = key.cast(dtypes.int64) * (1 << 32) + place.cast(dtypes.int64)
        (found,) = _sorted([_filled(both, length)], length)
        index = found & ((1 << 32) - 1)
    else:
        _, index = _sorted([_filled(key, length), _filled(place, length)], length)
    return cut(index.cast(dtypes.int32), last, 0, n).transpose(dim, last)


def _ordered(x: UOp) -> UOp:
    """Signed integers in the same order."""
    if not is_float(x.dtype):
        return x if x.dtype == dtypes.int64 else x.cast(dtypes.int32)
    wide = x.cast(math_dtype(x.dtype))
    kind = dtypes.int64 if wide.dtype == dtypes.float64 else dtypes.int32
    bits = wide.bitcast(kind)
    # Negative floats are in reverse order of their bits; -0.0 equals 0.0.
    flipped = bits ^ ((bits >> (8 * kind.itemsize - 1)) & kind.max)
    flipped = wide.eq(0).where(full_like(flipped, 0), flipped)
    return is_nan(wide).where(full_like(flipped, int(kind.max)), flipped)


def _filled(x: UOp, length: int) -> UOp:
    around = widths(x.ndim, x.ndim - 1, 0, length - int_shape(x)[-1])
    return pad(x, around, int(x.dtype.max)).cast(dtypes.int64)


# A row has its keys one after the other, then the run and the step of a round. They are read from
# memory, so that all rounds are one kernel, compiled once. The rest keeps groups of threads full.
_END = 64


def _sorted(keys: Sequence[UOp], n: int) -> list[UOp]:
    count, last = len(keys), keys[0].ndim - 1
    end = full((*int_shape(keys[0])[:-1], _END), 0, dtypes.int64)
    row = concatenate([*keys, end], last)
    row = _ending(row, full((), 2, dtypes.int32), full((), 1, dtypes.int32))
    levels = n.bit_length() - 1
    for _ in range(levels * (levels + 1) // 2):
        row = _round(row, count, n)
    return [cut(row, last, k * n, (k + 1) * n) for k in range(count)]


def _round(row: UOp, count: int, n: int) -> UOp:
    """Elements `step` apart in order, upwards and downwards in turns of `run`."""
    shape = int_shape(row)
    last, size = len(shape) - 1, shape[-1]
    ending = cut(row, last, count * n, count * n + 2).cast(dtypes.int32)
    run, step = (cut(ending, last, k, k + 1) for k in range(2))
    at = arange(size)
    element = at & (n - 1)
    own, other = (
        [gathered(row, last, (place + k * n).expand(shape)) for k in range(count)]
        for place in (element, element ^ step)
    )
    # The first of a pair keeps the lesser one in a run that goes upwards.
    keeps_lesser = (element & step).eq(0) ^ (element & run).ne(0)
    swap = _less(own, other) ^ keeps_lesser
    mine, theirs = own[0], other[0]
    for k in range(1, count):
        mine, theirs = ((at < k * n).where(x, y[k]) for x, y in ((mine, own), (theirs, other)))
    # Half the step; after the last one a run of twice the length.
    ends = step.eq(1)
    row = swap.where(theirs, mine)
    return _ending(row, ends.where(run * 2, run), ends.where(run, step // 2))


def _ending(row: UOp, run: UOp, step: UOp) -> UOp:
    size = int_shape(row)[-1]
    at = arange(size) - (size - _END)
    run, step = run.cast(row.dtype), step.cast(row.dtype)
    # Every round reads what the last one wrote.
    return at.eq(0).where(run, at.eq(1).where(step, row)).contiguous()


def _less(a: Sequence[UOp], b: Sequence[UOp]) -> UOp:
    def before(rest: UOp, pair: tuple[UOp, UOp]) -> UOp:
        return (pair[0] < pair[1]) | (pair[0].eq(pair[1]) & rest)

    pairs = list(zip(a, b, strict=True))
    return functools.reduce(before, reversed(pairs[:-1]), pairs[-1][0] < pairs[-1][1])
