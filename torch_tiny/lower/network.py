"""Batcher's bitonic sorting network: log2(n)^2 / 2 rounds of comparisons, each a kernel."""

import functools

from torch_tiny.lower.arithmetic import is_nan
from torch_tiny.lower.promote import is_float, math_dtype
from torch_tiny.lower.tools import arange, cut, full_like, pad, widths
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape

Keys = tuple[UOp, ...]
"""What is compared, the most important first."""


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
        (found,) = _sorted((_filled(both, length),), length)
        index = (found & ((1 << 32) - 1)).cast(dtypes.int32)
    else:
        _, index = _sorted((_filled(key, length), _filled(place, length)), length)
    return cut(index, last, 0, n).transpose(dim, last)


def _ordered(x: UOp) -> UOp:
    """Signed integers in the same order."""
    if not is_float(x.dtype):
        return x if x.dtype == dtypes.int64 else x.cast(dtypes.int32)
    wide = x.cast(math_dtype(x.dtype))
    kind = dtypes.int64 if wide.dtype == dtypes.float64 else dtypes.int32
    bits = (wide + 0.0).bitcast(kind)  # which makes -0.0 equal to 0.0
    # Negative floats are in reverse order of their bits.
    flipped = bits ^ ((bits >> (8 * kind.itemsize - 1)) & kind.max)
    return is_nan(wide).where(full_like(flipped, int(kind.max)), flipped)


def _filled(x: UOp, length: int) -> UOp:
    around = widths(x.ndim, x.ndim - 1, 0, length - int_shape(x)[-1])
    return pad(x, around, int(x.dtype.max))


def _sorted(keys: Keys, n: int) -> Keys:
    run = 2
    while run <= n:
        step = run // 2
        while step:
            keys = _round(keys, n, run, step)
            step //= 2
        run *= 2
    return keys


def _round(keys: Keys, n: int, run: int, step: int) -> Keys:
    """Elements `step` apart in order, upwards and downwards in turn."""
    lead = int_shape(keys[0])[:-1]
    shape = (n // (2 * step), 2, step)
    own = [x.reshape((*lead, *shape)) for x in keys]
    other = [x.flip((len(lead) + 1,)) for x in own]
    at = arange(n).reshape(shape)
    # The first of a pair keeps the lesser one in a run that goes upwards.
    keeps_lesser = (at & step).eq(0) ^ (at & run).ne(0)
    swap = _less(own, other) ^ keeps_lesser
    # Every round reads what the last one wrote.
    return tuple(
        swap.where(b, a).reshape((*lead, n)).contiguous() for a, b in zip(own, other, strict=True)
    )


def _less(a: list[UOp], b: list[UOp]) -> UOp:
    def before(rest: UOp, pair: tuple[UOp, UOp]) -> UOp:
        return (pair[0] < pair[1]) | (pair[0].eq(pair[1]) & rest)

    pairs = list(zip(a, b, strict=True))
    return functools.reduce(before, reversed(pairs[:-1]), pairs[-1][0] < pairs[-1][1])
