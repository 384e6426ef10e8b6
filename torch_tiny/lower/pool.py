"""Pooling and upsampling: windows forward, their overlap-add backward."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch_tiny.lower.arithmetic import absolute, is_nan, less_equal
from torch_tiny.lower.index import place, scatter, take
from torch_tiny.lower.promote import Number, as_uop, cast
from torch_tiny.lower.reduce import amax
from torch_tiny.lower.rule import Function, Table, heavy, rules
from torch_tiny.lower.shapes import (
    along,
    arange,
    dilate,
    full,
    full_like,
    lowest,
    pad,
    to_math,
    total,
)
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import int_shape


class Windows:
    """Where the windows of a pooling lie over the last k dimensions."""

    def __init__(self, x: UOp, kernel: Sequence[int], stride: Sequence[int],
                 padding: Sequence[int], dilation: Sequence[int], ceil: bool) -> None:  # fmt: skip
        k = x.ndim - 2 if x.ndim - 2 == len(kernel) else len(kernel)
        self.kernel, self.stride, self.padding, self.dilation = (
            tuple(v) * k if len(v) == 1 else tuple(v)
            for v in (kernel, stride or kernel, padding, dilation)
        )
        self.sizes = int_shape(x)[-k:]
        self.lead = int_shape(x)[:-k]
        self.grid = tuple(
            _positions(n, m, s, p, d, ceil)
            for n, m, s, p, d in zip(
                self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    def of(self, x: UOp, fill: bool | int | float) -> UOp:
        """(*lead, *grid, *kernel)"""
        around = [(0, 0)] * (x.ndim - len(self.kernel))
        for i, before in enumerate(self.padding):
            reach = (self.grid[i] - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1)
            # Less than 0 at the end where the last elements are in no window.
            around.append((before, reach + 1 - self.sizes[i] - before))
        return pad(x, around, fill)._pool(self.kernel, self.stride, self.dilation)

    def spread(self, g: UOp, fill: bool | int | float = 0) -> UOp:
        """For every input element the windows it may be in: (*lead, *sizes, *kernel)."""
        lead = g.ndim - len(self.kernel)
        around = [(0, 0)] * lead
        for i, step in enumerate(self.stride):
            g = dilate(g, lead + i, step, fill)
            before = self.dilation[i] * (self.kernel[i] - 1) - self.padding[i]
            length = self.sizes[i] + self.dilation[i] * (self.kernel[i] - 1)
            around.append((before, length - before - int_shape(g)[lead + i]))
        return pad(g, around, fill)._pool(self.kernel, 1, self.dilation)

    @property
    def over(self) -> tuple[int, ...]:
        """The kernel's dimensions."""
        k = len(self.kernel)
        return tuple(range(len(self.lead) + k, len(self.lead) + 2 * k))


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    # A window may not begin beyond the padding before the data's end.
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def place_of(hit: UOp, nan: UOp, number: UOp, size: int, over: tuple[int, ...]) -> UOp:
    """The number, below `size`, of the first hit; of the last NaN, if there is one."""
    rank = hit.where(size - number, full((), 0, dtypes.int32))
    rank = nan.where(size + 1 + number, rank).max(over)
    return (size < rank).where(rank - size - 1, size - rank)


def _max_pool(x: UOp, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
              dilation: Sequence[int], ceil: bool) -> tuple[UOp, UOp]:  # fmt: skip
    """The greatest and where it is."""
    w = Windows(x, kernel, stride, padding, dilation, ceil)
    seen, inside = w.of(x, lowest(x.dtype)), w.of(full_like(x, True, dtypes.bool), False)
    best = amax(seen, w.over)
    hit = seen.eq(best.reshape((*int_shape(best), *(1,) * len(w.kernel)))) & inside
    size = math.prod(w.kernel)
    first = place_of(hit, is_nan(seen), arange(size).reshape(w.kernel), size, w.over)
    index = full((1,) * best.ndim, 0, dtypes.int32)
    for i, n in enumerate(w.sizes):
        step = first // math.prod(w.kernel[i + 1 :]) % w.kernel[i]
        start = along(arange(w.grid[i]), len(w.lead) + i, best.ndim) * w.stride[i] - w.padding[i]
        index = index * n + start + step * w.dilation[i]
    return best, index.cast(dtypes.int64)


def _max_pool_backward(grad: UOp, x: UOp, kernel: Sequence[int], stride: Sequence[int],
                       padding: Sequence[int], dilation: Sequence[int], ceil: bool,
                       indices: UOp) -> UOp:  # fmt: skip
    w = Windows(x, kernel, stride, padding, dilation, ceil)
    here = arange(math.prod(w.sizes)).reshape((*w.sizes, *(1,) * len(w.kernel)))
    chosen = w.spread(indices.cast(dtypes.int32), -1).eq(here)
    slopes = w.spread(to_math(grad))
    return cast(total(chosen.where(slopes, full((), 0, slopes.dtype)), w.over), x.dtype)


def _divisor(w: Windows, x: UOp, count_padding: bool, override: int | None) -> UOp:
    """How many elements each window counts, to be broadcast."""
    if override is not None:
        return full((), float(override), to_math(x).dtype)
    result = full((1,) * (len(w.lead) + len(w.kernel)), 1, dtypes.int32)
    for i, (n, p) in enumerate(zip(w.sizes, w.padding, strict=True)):
        start = arange(w.grid[i]) * w.stride[i] - p
        stop = start + w.kernel[i]
        low, high = (-p, n + p) if count_padding else (0, n)
        stop = (stop > high).where(full_like(stop, high), stop)
        start = (start < low).where(full_like(start, low), start)
        result = result * along(stop - start, len(w.lead) + i, len(w.lead) + len(w.kernel))
    return result.cast(to_math(x).dtype)


def _avg_pool(x: UOp, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
              ceil: bool, count_padding: bool, override: int | None) -> UOp:  # fmt: skip
    w = Windows(x, kernel, stride, padding, [1], ceil)
    summed = total(w.of(to_math(x), 0), w.over)
    return cast(summed / _divisor(w, x, count_padding, override), x.dtype)


def _avg_pool_backward(grad: UOp, x: UOp, kernel: Sequence[int], stride: Sequence[int],
                       padding: Sequence[int], ceil: bool, count_padding: bool,
                       override: int | None) -> UOp:  # fmt: skip
    w = Windows(x, kernel, stride, padding, [1], ceil)
    shared = to_math(grad) / _divisor(w, x, count_padding, override)
    return cast(total(w.spread(shared), w.over), x.dtype)


# --- adaptive pooling: windows of unequal size, dimension by dimension ---


def _bins(size: int, count: int) -> tuple[UOp, UOp]:
    """(count, size): which elements each bin has; and 1-d: how many they are."""
    at = arange(count)
    start, stop = at * size // count, ((at + 1) * size + count - 1) // count
    here = arange(size)
    member = (here >= start.unsqueeze(1)) & (here < stop.unsqueeze(1))
    return member, stop - start


def _adaptive_avg(x: UOp, sizes: Sequence[int]) -> UOp:
    wide = to_math(x)
    for dim, n in enumerate(sizes, x.ndim - len(sizes)):
        wide = _binned(wide, dim, n)
    return cast(wide, x.dtype)


def _binned(x: UOp, dim: int, n: int) -> UOp:
    shape = int_shape(x)
    if shape[dim] % n == 0:
        step = shape[dim] // n
        return total(x.unflatten(dim, (n, step)), (dim + 1,)) / float(step)
    member, counts = _bins(shape[dim], n)
    member = member.reshape((n, shape[dim], *(1,) * (x.ndim - dim - 1)))
    kept = member.where(x.unsqueeze(dim), full((), 0, x.dtype))
    return total(kept, (dim + 1,)) / along(counts, dim, x.ndim).cast(x.dtype)


def _adaptive_avg_backward(grad: UOp, x: UOp, k: int) -> UOp:
    g = to_math(grad)
    for dim in range(x.ndim - k, x.ndim):
        size, n = int_shape(x)[dim], int_shape(grad)[dim]
        member, counts = _bins(size, n)
        g = g / along(counts, dim, x.ndim).cast(g.dtype)
        member = member.reshape((n, size, *(1,) * (x.ndim - dim - 1)))
        g = total(member.where(g.unsqueeze(dim + 1), full((), 0, g.dtype)), (dim,))
    return cast(g, x.dtype)


def _adaptive_max(x: UOp, sizes: Sequence[int]) -> tuple[UOp, UOp]:
    """Windows of the largest size, of which the last elements may not count."""
    k, lead = len(sizes), x.ndim - len(sizes)
    here = int_shape(x)[lead:]
    seen, counts, at = x, full((1,) * (lead + 2 * k), True, dtypes.bool), []
    for i, n in enumerate(sizes):
        start = arange(n) * here[i] // n
        stop = ((arange(n) + 1) * here[i] + n - 1) // n
        width = max(-(-(j + 1) * here[i] // n) - j * here[i] // n for j in range(n))
        index = start.unsqueeze(1) + arange(width)
        inside = index < stop.unsqueeze(1)
        dim = lead + 2 * i
        taken = take(seen, dim, inside.where(index, full((), 0, dtypes.int32)).reshape((-1,)))
        seen = taken.unflatten(dim, (n, width))
        spread = (*(1,) * dim, n, width, *(1,) * (2 * (k - i - 1)))
        counts = counts & inside.reshape(spread)
        at.append(index.reshape(spread))
    over = tuple(lead + 2 * i + 1 for i in range(k))
    best = amax(counts.where(seen, full((), lowest(x.dtype), x.dtype)), over, keepdim=True)
    flat = functools.reduce(lambda sofar, step: sofar * step[0] + step[1],
                            zip(here, at, strict=True), full((), 0, dtypes.int32))  # fmt: skip
    index = place_of(counts & seen.eq(best), counts & is_nan(seen), flat, math.prod(here), over)
    shape = (*int_shape(x)[:lead], *sizes)
    return best.reshape(shape), index.cast(dtypes.int64).reshape(shape)


def _adaptive_max_backward(grad: UOp, x: UOp, indices: UOp, k: int) -> UOp:
    shape, lead = int_shape(x), x.ndim - k
    size = math.prod(shape[lead:])
    flat = (*shape[:lead], 1, -1)
    hit = indices.cast(dtypes.int32).reshape(flat).eq(arange(size).reshape((size, 1)))
    placed = hit.where(to_math(grad).reshape(flat), full((), 0, to_math(grad).dtype))
    return cast(total(placed, (lead + 1,)), x.dtype).reshape(shape)


# --- upsampling, dimension by dimension ---


Scale = Number | None


def input_step(size: int, out: int, scale: Scale, dtype: DType) -> UOp:
    """Input elements for each output element."""
    ratio = full((), size / out, dtypes.float64)
    if scale is not None:
        given = as_uop(scale, dtypes.float64)
        ratio = (given > 0).where(given.reciprocal(), ratio)
    return ratio.cast(dtype)


Tap = tuple[UOp, UOp | None]
"""An input for each output along a dimension, and its weight."""
Taps = Callable[..., Sequence[Tap]]


def _nearest(
    size: int, out: int, scale: Scale, _dtype: DType, exact: bool, short: bool = True
) -> Sequence[Tap]:
    """short: PyTorch does not look at the scale where a length stays or doubles."""
    if short and not exact and out in (size, 2 * size):
        return [(arange(out) // (out // size), None)]
    at = arange(out).cast(dtypes.float32) + (0.5 if exact else 0.0)
    source = call("floor", at * input_step(size, out, scale, dtypes.float32)).cast(dtypes.int32)
    return [((source > size - 1).where(full_like(source, size - 1), source), None)]


def _source(size: int, out: int, scale: Scale, dtype: DType, corners: bool) -> UOp:
    """Where in the input each output element lies."""
    at = arange(out).cast(dtype)
    if corners:
        return at * ((size - 1) / (out - 1) if out > 1 else 0.0)
    return (at + 0.5) * input_step(size, out, scale, dtype) - 0.5


def _linear(size: int, out: int, scale: Scale, dtype: DType, corners: bool) -> Sequence[Tap]:
    """The two neighbours of each output element."""
    if size == out:  # whatever the scale is
        source = arange(out).cast(dtype)
    else:
        source = _source(size, out, scale, dtype, corners)
        source = source if corners else (source < 0).where(full_like(source, 0.0), source)
    low = source.cast(dtypes.int32)
    low = (low > size - 1).where(full_like(low, size - 1), low)
    high = (low < size - 1).where(low + 1, low)
    weight = source - low.cast(dtype)
    weight = (weight > 1.0).where(full_like(weight, 1.0), weight)
    return [(low, 1.0 - weight), (high, weight)]


def _cubic(size: int, out: int, scale: Scale, dtype: DType, corners: bool) -> Sequence[Tap]:
    """The four neighbours of each output element."""
    source = _source(size, out, scale, dtype, corners)
    low, taps = call("floor", source), []
    for step in (-1, 0, 1, 2):
        index = low.cast(dtypes.int32) + step
        index = (index < 0).where(full_like(index, 0), index)
        index = (index > size - 1).where(full_like(index, size - 1), index)
        taps.append((index, keys(absolute(source - low - float(step)))))
    return taps


def keys(x: UOp, a: float = -0.75) -> UOp:
    """Keys' kernel, for 0 <= x <= 2."""
    near = (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0
    far = ((x * a + a * -5.0) * x - a * -8.0) * x + a * -4.0
    return less_equal(x, full_like(x, 1.0)).where(near, far)


def _resized(x: UOp, dim: int, taps: Sequence[Tap]) -> UOp:
    parts = (_weighted(take(x, dim, index), dim, weight) for index, weight in taps)
    return functools.reduce(operator.add, parts)


def _spread(g: UOp, dim: int, taps: Sequence[Tap], size: int) -> UOp:
    """The adjoint of `_resized`."""
    parts = (place(_weighted(g, dim, weight), dim, index, size) for index, weight in taps)
    return functools.reduce(operator.add, parts)


def _weighted(x: UOp, dim: int, weight: UOp | None) -> UOp:
    return x if weight is None else x * along(weight, dim, x.ndim)


def _upsampled(x: UOp, sizes: Sequence[int], scales: Sequence[Scale], taps: Taps,
               last_first: bool = False) -> UOp:  # fmt: skip
    dims = list(enumerate(zip(int_shape(x)[2:], sizes, scales, strict=True), 2))
    for dim, (size, n, scale) in reversed(dims) if last_first else dims:
        x = _resized(x, dim, taps(size, n, scale, x.dtype))
    return x


def _upsample_nearest(x: UOp, sizes: Sequence[int], *scales: Scale, exact: bool) -> UOp:
    return _upsampled(x, sizes, scales, partial(_nearest, exact=exact, short=len(sizes) == 2))


def _upsample(x: UOp, sizes: Sequence[int], corners: bool, *scales: Scale, taps: Taps,
              last_first: bool = False) -> UOp:  # fmt: skip
    wide = _upsampled(to_math(x), sizes, scales, partial(taps, corners=corners), last_first)
    return cast(wide, x.dtype)


def _gathered(grad: UOp, sizes: Sequence[int], inputs: Sequence[int], *how: Any, taps: Taps,
              **fixed: bool) -> UOp:  # fmt: skip
    """The adjoint. how: corners, where the taps depend on them, and the scales."""
    k, g = len(sizes), to_math(grad)
    corners, scales = how[:-k], how[-k:]
    for dim, (n, size, scale) in enumerate(zip(sizes, inputs[2:], scales, strict=True), 2):
        g = _spread(g, dim, taps(size, n, scale, g.dtype, *corners, **fixed), size)
    return cast(g, grad.dtype)


def _upsampling(nearest: Function, smooth: Function, suffix: str = "") -> dict[str, Function]:
    """In one, two and three dimensions."""
    return {
        f"{name}{k}d{suffix}": rule
        for k, kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear"))
        for name, rule in (
            ("upsample_nearest", partial(nearest, exact=False)),
            ("_upsample_nearest_exact", partial(nearest, exact=True)),
            (f"upsample_{kind}", partial(smooth, taps=_linear)),
        )
    }


# Every place looks at all that may have come from it.
_HEAVY: dict[str, Function] = {
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "max_pool3d_with_indices_backward": _max_pool_backward,
    "adaptive_max_pool2d_backward": lambda grad, x, i: _adaptive_max_backward(grad, x, i, 2),
    "adaptive_max_pool3d_backward": lambda grad, x, i: _adaptive_max_backward(grad, x, i, 3),
    **_upsampling(partial(_gathered, taps=_nearest), _gathered, "_backward"),
    "upsample_bicubic2d_backward": partial(_gathered, taps=_cubic),
}


def _max_unpool(x: UOp, index: UOp, size: Sequence[int], *_: Sequence[int]) -> UOp:
    images, volume = math.prod(int_shape(x)[: -len(size)]), math.prod(size)
    zeros = full((images, volume), 0, x.dtype)
    flat = (one.reshape((images, -1)) for one in (index, x))
    result: UOp = zeros if 0 in x.shape or volume == 0 else scatter(zeros, 1, *flat)
    return result.reshape((*int_shape(x)[: -len(size)], *size))


TABLE: Table = {
    **rules(_HEAVY, heavy),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _max_unpool),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _max_pool),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _avg_pool),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward"), _avg_pool_backward),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _adaptive_avg),
    "_adaptive_avg_pool2d_backward": lambda grad, x: _adaptive_avg_backward(grad, x, 2),
    "_adaptive_avg_pool3d_backward": lambda grad, x: _adaptive_avg_backward(grad, x, 3),
    **dict.fromkeys(("adaptive_max_pool2d", "adaptive_max_pool3d"), _adaptive_max),
    **_upsampling(_upsample_nearest, _upsample),
    "upsample_bicubic2d": partial(_upsample, taps=_cubic, last_first=True),
}
