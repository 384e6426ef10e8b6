"""Grid sampling: an output element is a weighted sum of the inputs near a place of its own."""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch_tiny.lower.arithmetic import absolute, less_equal, maximum, minimum
from torch_tiny.lower.index import gather, scatter_add
from torch_tiny.lower.movement import concatenate
from torch_tiny.lower.pool import keys
from torch_tiny.lower.promote import cast
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import full, full_like, to_math, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import cut, int_shape

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


@dataclass(frozen=True)
class _Tap:
    """One of the inputs along a dimension: where, how much, and how that changes."""

    at: UOp
    inside: UOp
    weight: UOp
    slope: UOp


class _Sampler:
    """The inputs that each of the (n, places) outputs looks at."""

    def __init__(self, x: UOp, grid: UOp, mode: int, padding: int, corners: bool) -> None:
        self.n, self.channels, *self.sizes = int_shape(x)
        self.flat = to_math(x).reshape((self.n, self.channels, -1))
        self.out = int_shape(grid)[1:-1]
        self._how = (mode, padding, corners)
        rows = to_math(grid).reshape((self.n, -1, len(self.sizes)))
        # The grid's last dimension counts from the innermost one.
        self.taps = [
            self._along(cut(rows, 2, k, k + 1).squeeze(2), size)
            for k, size in zip(reversed(range(len(self.sizes))), self.sizes, strict=True)
        ]

    def combinations(self) -> list[tuple[_Tap, ...]]:
        return list(itertools.product(*self.taps))

    def index(self, taps: Sequence[_Tap]) -> UOp:
        """(n, channels, places): the flat position, 0 where it is outside."""
        flat = full((1, 1), 0, dtypes.int32)
        for tap, size in zip(taps, self.sizes, strict=True):
            flat = flat * size + tap.at
        flat = self.inside(taps).where(flat, full((), 0, dtypes.int32))
        places = math.prod(self.out)
        return flat.unsqueeze(1).expand((self.n, self.channels, places)).cast(dtypes.int64)

    def inside(self, taps: Sequence[_Tap]) -> UOp:
        return functools.reduce(operator.and_, (tap.inside for tap in taps))

    def weight(self, taps: Sequence[_Tap], by: int | None = None) -> UOp:
        """The product of the weights, or its derivative by the place along one dimension."""
        factors = (tap.slope if dim == by else tap.weight for dim, tap in enumerate(taps))
        result = functools.reduce(operator.mul, factors)
        return self.inside(taps).where(result, full((), 0, result.dtype))

    def _along(self, coordinate: UOp, size: int) -> list[_Tap]:
        mode, padding, corners = self._how
        scale = (size - 1) / 2 if corners else size / 2
        place = (coordinate + 1.0) * scale - (0.0 if corners else 0.5)
        factor = full_like(place, scale)
        if mode != _CUBIC:
            place, factor = _folded(place, factor, size, padding, corners)
        low = call("rint" if mode == _NEAREST else "floor", place)
        rest = place - low
        if mode == _NEAREST:
            return [_tap(low, full_like(place, 1.0), full_like(place, 0.0), size)]
        if mode == _LINEAR:
            return [
                _tap(low, 1.0 - rest, -factor, size),
                _tap(low + 1.0, rest, factor, size),
            ]
        taps = []
        for step in (-1, 0, 1, 2):
            at = _folded(low + float(step), factor, size, padding, corners)[0]
            weight, slope = _cubic(rest - float(step))
            taps.append(_tap(at, weight, slope * factor, size))
        return taps


def _tap(at: UOp, weight: UOp, slope: UOp, size: int) -> _Tap:
    inside = less_equal(full_like(at, 0.0), at) & (at < float(size))
    safe = inside.where(at, full_like(at, 0.0)).cast(dtypes.int32)
    return _Tap(safe, inside, weight, slope)


def _folded(x: UOp, slope: UOp, size: int, padding: int, corners: bool) -> tuple[UOp, UOp]:
    """A place brought inside as the padding says, and what becomes of its slope."""
    if padding == _ZEROS:
        return x, slope
    if padding == _REFLECTION:
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if high == low:
            return full_like(x, 0.0), full_like(x, 0.0)
        span = high - low
        y = x - low
        slope = (y < 0).where(-slope, slope)
        y = absolute(y)
        extra = call("fmod", y, full_like(y, span))
        odd = call("fmod", call("floor", y / span), full_like(y, 2.0)).ne(0)
        x = odd.where(span - extra, extra) + low
        slope = odd.where(-slope, slope)
    outside = less_equal(x, full_like(x, 0.0)) | less_equal(full_like(x, size - 1.0), x)
    inner = minimum(maximum(x, full_like(x, 0.0)), full_like(x, size - 1.0))
    return x.ne(x).where(full_like(x, 0.0), inner), outside.where(full_like(x, 0.0), slope)


def _cubic(x: UOp) -> tuple[UOp, UOp]:
    """Keys' kernel with a = -0.75 at distance x, and its derivative."""
    d = absolute(x)
    sign = call("copysign", full_like(x, 1.0), x)
    near_slope = (d * 3.75 - 4.5) * d
    far_slope = (d * -2.25 + 7.5) * d - 6.0
    close = less_equal(d, full_like(d, 1.0))
    return keys(d), close.where(near_slope, far_slope) * sign


def _sample(x: UOp, grid: UOp, mode: int, padding: int, corners: bool) -> UOp:
    sampler = _Sampler(x, grid, mode, padding, corners)
    values = (
        gather(sampler.flat, 2, sampler.index(taps)) * sampler.weight(taps).unsqueeze(1)
        for taps in sampler.combinations()
    )
    result = functools.reduce(operator.add, values)
    return cast(result, x.dtype).reshape((sampler.n, sampler.channels, *sampler.out))


def _sample_backward(grad: UOp, x: UOp, grid: UOp, mode: int, padding: int, corners: bool,
                     mask: Sequence[bool]) -> Results:  # fmt: skip
    sampler = _Sampler(x, grid, mode, padding, corners)
    g = to_math(grad).reshape((sampler.n, sampler.channels, -1))
    inward = full_like(sampler.flat, 0)
    turns = [full((1, 1), 0, g.dtype)] * len(sampler.sizes)
    for taps in sampler.combinations():
        index = sampler.index(taps)
        if mask[0]:
            inward = scatter_add(inward, 2, index, g * sampler.weight(taps).unsqueeze(1))
        if mask[1] and mode != _NEAREST:
            pull = total(gather(sampler.flat, 2, index) * g, (1,))
            turns = [t + pull * sampler.weight(taps, by=d) for d, t in enumerate(turns)]
    places = (sampler.n, math.prod(sampler.out))
    columns = [t.expand(places).unsqueeze(2) for t in reversed(turns)]
    return (
        cast(inward, x.dtype).reshape(int_shape(x)) if mask[0] else None,
        cast(concatenate(columns, 2), grid.dtype).reshape(int_shape(grid)) if mask[1] else None,
    )


TABLE: Table = {
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d"), _sample),
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), _sample_backward),
}
