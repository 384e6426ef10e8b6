"""Fractional max pooling: windows that begin where given random numbers say."""

import math
from collections.abc import Sequence

from torch_tiny.lower.arithmetic import is_nan
from torch_tiny.lower.index import gather, scatter_add
from torch_tiny.lower.pool import place_of
from torch_tiny.lower.promote import cast
from torch_tiny.lower.reduce import amax
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import along, arange, full, full_like, to_math
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import cut, int_shape


def _starts(sample: UOp, size: int, out: int, kernel: int) -> UOp:
    """(n, channels, out): evenly spread after a shift, the last one at the end."""
    at, end = arange(out), full((), size - kernel, dtypes.int32)
    if out == 1:
        return full((*int_shape(sample), 1), size - kernel, dtypes.int32)
    u = sample.unsqueeze(2)
    step = (size - kernel) / (out - 1)
    begun = ((at.cast(u.dtype) + u) * step).cast(dtypes.int32) - (u * step).cast(dtypes.int32)
    return at.eq(out - 1).where(end, begun)


def _pool(x: UOp, kernel: Sequence[int], out: Sequence[int], samples: UOp) -> Results:
    k = len(kernel)
    lead, sizes = int_shape(x)[:-k], int_shape(x)[-k:]
    rows = x.reshape((-1, lead[-1], math.prod(sizes)))
    n, channels, _ = int_shape(rows)
    # Two numbers are in the order (width, height), three in that of the dimensions.
    order = [1, 0] if k == 2 else [0, 1, 2]
    flat: UOp = full((1,) * (2 + 2 * k), 0, dtypes.int32)
    for d, which in enumerate(order):
        sample = cut(samples.reshape((n, channels, k)), 2, which, which + 1).squeeze(2)
        start = _starts(sample, sizes[d], out[d], kernel[d])
        begun = start.reshape((n, channels, *(m if e == d else 1 for e, m in enumerate(out))))
        inside = along(arange(kernel[d]), 2 + k + d, flat.ndim)
        flat = flat * sizes[d] + (begun.reshape((*begun.shape, *(1,) * k)) + inside)
    whole = (n, channels, *out, *kernel)
    index = flat.expand(whole).reshape((n, channels, -1))
    seen = gather(rows, 2, index.cast(dtypes.int64)).reshape(whole)
    over = tuple(range(2 + k, 2 + 2 * k))
    best = amax(seen, over, keepdim=True)
    index = place_of(seen.eq(best), is_nan(seen), flat.expand(whole), math.prod(sizes), over)
    shape = (*lead, *out)
    return best.reshape(shape), index.cast(dtypes.int64).reshape(shape)


def _backward(grad: UOp, x: UOp, kernel: Sequence[int], _out: Sequence[int],
              indices: UOp) -> UOp:  # fmt: skip
    k = len(kernel)
    shape = int_shape(x)
    lead = math.prod(shape[:-k])
    flat = full_like(to_math(x), 0).reshape((lead, -1))
    g, at = (t.reshape((lead, -1)) for t in (to_math(grad), indices))
    return cast(scatter_add(flat, 1, at, g), x.dtype).reshape(shape)


TABLE: Table = {
    **dict.fromkeys(("fractional_max_pool2d", "fractional_max_pool3d"), _pool),
    **dict.fromkeys(
        ("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"), _backward
    ),
}
