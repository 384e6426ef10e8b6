"""Fourier transforms as sums over short dimensions, after Cooley and Tukey."""

import math
from collections.abc import Sequence

from torch_tiny.lower.complex_value import Complex, from_real
from torch_tiny.lower.movement import concatenate, flip
from torch_tiny.lower.promote import cast
from torch_tiny.lower.rule import Rule, Table, heavy
from torch_tiny.lower.shapes import arange, to_math, total
from torch_tiny.uops import DType, UOp, call
from torch_tiny.views import cut

_DIRECT = 64  # sums of at most so many terms, unless the length has a larger prime factor


def _transformed(z: Complex, sign: float) -> Complex:
    """Along the last dimension: sum over j of z[j] exp(sign 2 pi i jk / n)."""
    *lead, n = z.shape
    a = _factor(n)
    if a == 1:
        return _summed(z, n, sign)
    b = n // a
    # j = j1 b + j2 and k = k1 + a k2: sums over j1, a turn by j2 k1, sums over j2.
    rows = z.reshape((*lead, a, b)).transpose(-1, -2)
    inner = _summed(rows, a, sign).transpose(-1, -2)
    turned = inner * _roots(arange(a).unsqueeze(1) * arange(b), n, sign, z.re.dtype)
    outer = _transformed(turned, sign)
    return outer.transpose(-1, -2).reshape((*lead, n))


def _factor(n: int) -> int:
    """What to split off: 1 where a direct sum is all there is."""
    if n <= _DIRECT:
        return 1
    return max(d for d in range(1, _DIRECT + 1) if n % d == 0 and d < n)


def _summed(z: Complex, n: int, sign: float) -> Complex:
    root = _roots(arange(n).unsqueeze(1) * arange(n), n, sign, z.re.dtype)
    terms = z.unsqueeze(-2) * root
    return terms.each(lambda x: total(x, (x.ndim - 1,)))


def _roots(turns: UOp, n: int, sign: float, dtype: DType) -> Complex:
    """exp(sign 2 pi i turns / n), reduced to the first half turn in integers."""
    part = turns % n
    angle = part.cast(dtype) * (sign * 2.0 * math.pi / n)
    return Complex(call("cos", angle), call("sin", angle))


def _along(z: Complex, dims: Sequence[int], sign: float) -> Complex:
    last = z.ndim - 1
    for dim in dims:
        z = _transformed(z.transpose(dim, last), sign).transpose(dim, last)
    return z


def _normalized(z: Complex, count: int, normalization: int) -> Complex:
    """0: not at all, 1: by the root of the length, 2: by the length."""
    if normalization == 0:
        return z
    return z * (1.0 / (math.sqrt(count) if normalization == 1 else count))


def _c2c(z: Complex, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    wrapped = [d % max(1, z.ndim) for d in dims]
    wide = _along(z.each(to_math), wrapped, -1.0 if forward else 1.0)
    count = math.prod(z.shape[d] for d in wrapped)
    return _normalized(wide, count, normalization).each(lambda x: cast(x, z.re.dtype))


def _r2c(x: UOp, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *others, last = (d % max(1, x.ndim) for d in dims)
    wide = _along(from_real(to_math(x)), [last], -1.0)
    if onesided:
        kept = wide.shape[last] // 2 + 1
        wide = wide.each(lambda p: cut(p, last, 0, kept))
    wide = _along(wide, others, -1.0)
    count = math.prod(int(x.shape[d]) for d in (*others, last))
    return _normalized(wide, count, normalization).each(lambda p: cast(p, x.dtype))


def _c2r(z: Complex, dims: Sequence[int], normalization: int, size: int) -> UOp:
    *others, last = (d % max(1, z.ndim) for d in dims)
    wide = _along(z.each(to_math), others, 1.0)
    half = wide.each(lambda p: cut(p, last, 0, size // 2 + 1))
    real = _along(_mirrored(half, last, size), [last], 1.0)
    count = math.prod(z.shape[d] for d in others) * size
    return cast(_normalized(real, count, normalization).re, z.re.dtype)


def _mirrored(half: Complex, dim: int, size: int) -> Complex:
    """The spectrum of a real signal: the second half is the first one's conjugate, backwards.

    The imaginary parts of the constant, and of the highest frequency of an even size, count not.
    """
    n = half.shape[dim]
    rest = half.each(lambda p: flip(cut(p, dim, 1, 1 + size - n), [dim])).conj()
    at = arange(n).reshape(tuple(n if d == dim else 1 for d in range(half.ndim)))
    alone = at.eq(0) | at.eq(n - 1 if size % 2 == 0 else -1)
    first = Complex(half.re, alone.where(half.im.const_like(0), half.im))
    if size == n:
        return first
    return Complex(concatenate([first.re, rest.re], dim), concatenate([first.im, rest.im], dim))


TABLE: Table = {
    "_fft_c2c": Rule(complex=_c2c, cost=heavy),
    "_fft_r2c": Rule(_r2c, cost=heavy),
    "_fft_c2r": Rule(complex=_c2r, cost=heavy),
}
