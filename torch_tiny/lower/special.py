"""Special functions, computed in double from short series and quadratures."""

import math
from collections.abc import Callable
from functools import partial

from torch_tiny.lower.arithmetic import absolute, exp, log, maximum, minimum, polynomial
from torch_tiny.lower.bessel import first_kind, second_kind
from torch_tiny.lower.elementwise import Unary
from torch_tiny.lower.promote import cast, elementwise_float, float_dtype, math_dtype, result_dtype
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import arange, full_like, total
from torch_tiny.uops import UOp, call, dtypes

# B(2k)/(2k) of Stirling's series, and B(2k)/(2k)! of the Euler-Maclaurin formula.
_STIRLING = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_EULER = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)


def digamma(x: UOp) -> UOp:
    reflected = x < 0
    z = reflected.where(1.0 - x, x)
    result = full_like(x, 0.0)
    for _ in range(10):
        small = z < 10.0
        result = small.where(result - z.reciprocal(), result)
        z = small.where(z + 1.0, z)
    inverse = z.reciprocal()
    square = inverse * inverse
    result = result + log(z) - inverse * 0.5 - square * polynomial(square, _STIRLING)
    fraction = x - call("trunc", x)
    mirrored = result - call("tan", fraction * math.pi).reciprocal() * math.pi
    mirrored = fraction.eq(0).where(full_like(x, math.nan), mirrored)
    pole = call("copysign", full_like(x, math.inf), -x)
    return x.eq(0).where(pole, reflected.where(mirrored, result))


def _trigamma(x: UOp) -> UOp:
    reflected = x < 0.5
    z = reflected.where(1.0 - x, x)
    result = full_like(x, 0.0)
    for _ in range(8):
        result = result + (z * z).reciprocal()
        z = z + 1.0
    inverse = z.reciprocal()
    square = inverse * inverse
    tail = polynomial(square, (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66))
    result = result + inverse + square * 0.5 + inverse * square * tail
    sine = call("sin", x * math.pi)
    return reflected.where((math.pi * math.pi) * (sine * sine).reciprocal() - result, result)


def _zeta(s: UOp, q: UOp) -> UOp:
    """Hurwitz' zeta by Euler and Maclaurin's formula, once the terms' base is past 9."""
    most = 64
    terms = minimum(maximum(call("ceil", 10.0 - q), full_like(q, 9.0)), full_like(q, float(most)))
    at = arange(most).cast(q.dtype)
    powers = call("pow", q.unsqueeze(-1) + at, -s.unsqueeze(-1))
    counted = (at < terms.unsqueeze(-1)).where(powers, 0.0)
    result = total(counted, (counted.ndim - 1,))
    last = q + terms
    power = call("pow", last, -s)
    result = result + power * last / (s - 1.0) + power * 0.5
    factor, power = s, power / last
    for k, c in enumerate(_EULER):
        result = result + factor * power * c
        factor = factor * (s + float(2 * k + 1)) * (s + float(2 * k + 2))
        power = power / last / last
    whole_q, whole_s = call("floor", q).eq(q), call("floor", s).eq(s)
    at_pole = whole_q.where(full_like(result, math.inf), whole_s.where(result, math.nan))
    result = (q > 0).where(result, at_pole)
    result = s.eq(1.0).where(full_like(result, math.inf), result)
    return (s < 1.0).where(full_like(result, math.nan), result)


def _polygamma(n: int, x: UOp) -> UOp:
    if n == 0:
        return _in_double(digamma, x)
    if n == 1:
        # Near its poles PyTorch's own error is that of float32, and tests compare with it.
        return elementwise_float(_trigamma, x)
    sign = (-1.0) ** (n + 1) * math.factorial(n)
    return _in_double(lambda v: _zeta(full_like(v, float(n + 1)), v) * sign, x)


def _bessel_i(x: UOp, order: int, scaled: bool = False) -> UOp:
    """The mean of exp(x cos t) cos(nt) over a circle; the trapezoidal rule converges at once."""
    points, size = 96, absolute(x)
    angle = (arange(points).cast(dtypes.float64) + 0.5) * (math.pi / points)
    cosine = call("cos", angle)
    weight = call("cos", angle * float(order))
    terms = exp(size.unsqueeze(-1) * (cosine - 1.0)) * weight
    near = total(terms, (x.ndim,)) / float(points)
    # Beyond that the peak is narrower than the points are apart.
    mu, inverse = 4.0 * order * order, (size * 8.0).reciprocal()
    far = 1.0 - inverse * (mu - 1.0) * (
        1.0 - inverse * ((mu - 9.0) / 2) * (1.0 - inverse * ((mu - 25.0) / 3))
    )
    far = far / call("sqrt", size * (2 * math.pi))
    result = (size > 200.0).where(far, near)
    result = result if scaled else result * exp(size)
    return (x < 0).where(-result, result) if order % 2 else result


def _bessel_k(x: UOp, order: int, scaled: bool = False) -> UOp:
    near = log(x * 0.5) + 0.5772156649015329  # below which most of the integral is farther out
    near = x.reciprocal() + x * 0.5 * (near - 0.5) if order else (1.0 - near) * x * x * 0.25 - near
    result = (x < 1e-4).where(near * exp(x), _scaled_k(x, order))
    result = result if scaled else result * exp(-x)
    result = x.eq(0).where(full_like(x, math.inf), result)
    return (x < 0).where(full_like(x, math.nan), result)


def _scaled_k(x: UOp, order: float) -> UOp:
    """The integral of exp(x - x cosh t) cosh(nt), by the trapezoidal rule."""
    points, step = 192, 1 / 12
    at = arange(points).cast(x.dtype) * step
    weight = call("cosh", at * order)
    halved = arange(points).eq(0).where(weight * 0.5, weight)
    rise = call("cosh", at) - 1.0
    return total(exp(-(x.unsqueeze(-1) * rise)) * halved, (x.ndim,)) * step


def erfinv(x: UOp) -> UOp:
    """Winitzki's approximation and Halley's steps; near 1 by what is left to it, which is exact."""
    size = absolute(x)
    rest = 1.0 - size
    bend = log(rest * (size + 1.0))
    first = bend * 0.5 + 2 / (math.pi * 0.147)
    y = call("sqrt", call("sqrt", first * first - bend / 0.147) - first)
    for _ in range(3):
        error = (size > 0.5).where(rest - call("erfc", y), call("erf", y) - size)
        slope = exp(-(y * y)) * (2 / math.sqrt(math.pi))
        newton = error / slope
        y = y - newton / (newton * y + 1.0)
    y = size.eq(1.0).where(full_like(x, math.inf), y)
    return x.eq(0).where(x, call("copysign", y, x))


def _erfcx(x: UOp) -> UOp:
    near = exp(x * x) * call("erfc", x)
    square = (x * x).reciprocal()
    series = 1.0 - square * 0.5 * (1.0 - square * 1.5 * (1.0 - square * 2.5))
    return (x > 25.0).where(series / (x * math.sqrt(math.pi)), near)


def _log_ndtr(x: UOp) -> UOp:
    t = x * math.sqrt(0.5)
    tail = log(_erfcx(-t) * 0.5) - t * t
    return (x < -1.0).where(tail, call("log1p", call("erfc", t) * -0.5))


def _spherical(x: UOp) -> UOp:
    near = polynomial(x * x, (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800))
    far = absolute(x).eq(math.inf).where(full_like(x, 0.0), call("sin", x) / x)
    return (absolute(x) < 0.5).where(near, far)


def _in_double(function: Callable[..., UOp], *operands: UOp, **how: float) -> UOp:
    dtype = float_dtype(result_dtype(*operands))
    return cast(function(*(cast(x, dtypes.float64) for x in operands), **how), dtype)


def _frexp(x: UOp) -> tuple[UOp, UOp]:
    """x = mantissa * 2**exponent with a mantissa from 0.5 on and below 1, off the bits."""
    wide = x.cast(math_dtype(x.dtype))
    kind, bits, bias = _LAYOUTS[wide.dtype]
    # Numbers below the normal ones become normal.
    tiny = absolute(wide) < 2.0 ** (2 - bias)
    scaled = tiny.where(wide * 2.0**bits, wide)
    raw = scaled.bitcast(kind)
    exponent = ((raw >> (bits - 1)) & (2 * bias + 1)).cast(dtypes.int32) - (bias - 1)
    exponent = tiny.where(exponent - bits, exponent)
    mask = (2 * bias + 1) << (bits - 1)
    mantissa = ((raw & ~mask) | ((bias - 1) << (bits - 1))).bitcast(wide.dtype)
    plain = x.eq(0) | (absolute(wide) < math.inf).logical_not()
    own = cast(plain.where(wide, mantissa), x.dtype)
    return own, plain.where(full_like(exponent, 0), exponent)


# The integer of the same size, the bits of the fraction with the hidden one, the bias.
_LAYOUTS = {dtypes.float32: (dtypes.int32, 24, 127), dtypes.float64: (dtypes.int64, 53, 1023)}


def _igamma(a: UOp, x: UOp) -> tuple[UOp, UOp]:
    """The lower and the upper incomplete gamma function, regularized.

    Both are x^a e^-x / Gamma(a) times an integral over what is left and right of x, whose integrand
    falls from 1; the double exponential formula takes it in units of its width.
    """
    s = (arange(_POINTS).cast(a.dtype) - 0.55 * _POINTS) * _STEP
    unit = exp(s - exp(-s))
    rise = unit * (exp(-s) + 1.0) * _STEP

    def integral(width: UOp, exponent: Unary) -> UOp:
        terms = exp(exponent(width.unsqueeze(-1) * unit)) * rise
        return total(terms, (terms.ndim - 1,)) * width

    # Below 1 the integral is a wide one: P(a, x) = P(a + 1, x) + x^a e^-x / Gamma(a + 1).
    little, zero = a < 1.0, full_like(a, 0.0)
    raised = little.where(a + 1.0, a)
    c, b, y = raised.unsqueeze(-1), a.unsqueeze(-1) - 1.0, x.unsqueeze(-1)
    left = integral(
        (maximum(raised - x, zero) + call("sqrt", raised)).reciprocal(),
        lambda v: (v < 0.5).where((y - c) * v - y * _exp_gap(v), -(c * v) - y * call("expm1", -v)),
    )
    right = integral(
        (maximum(x - a, zero) + call("sqrt", a) + 1.0).reciprocal(),
        lambda v: (v < 0.5).where((b - y) * v - b * _log_gap(v), b * call("log1p", v) - y * v),
    )
    density = _gamma_density(a, x)
    below = _gamma_density(raised, x) * raised * left + little.where(density, zero)
    above = density * a * right
    small = x < a + 1.0
    lower, upper = small.where(below, 1.0 - above), small.where(1.0 - below, above)
    return _gamma_edges(a, x, lower, 0.0), _gamma_edges(a, x, upper, 1.0)


_POINTS, _STEP = 160, 1 / 16


def _gamma_density(a: UOp, x: UOp) -> UOp:
    """x^a e^-x / Gamma(a + 1), by Stirling's series where a is not small."""
    plain = exp(a * log(x) - x - call("lgamma", a + 1.0))
    inverse = a.reciprocal()
    series = inverse * polynomial(inverse * inverse, (1 / 12, -1 / 360, 1 / 1260, -1 / 1680))
    far = exp(-(a * _log_gap((x - a) * inverse)) - series) / call("sqrt", a * (2 * math.pi))
    return (a < 20.0).where(plain, far)


def _exp_gap(v: UOp) -> UOp:
    """exp(-v) - 1 + v below 0.5."""
    return polynomial(-v, [1 / math.factorial(k) for k in range(2, 16)]) * v * v


def _log_gap(v: UOp) -> UOp:
    """v - log(1 + v)"""
    s = v / (v + 2.0)
    square = s * s
    odd = polynomial(square, tuple(2 / k for k in range(3, 31, 2))) * s
    near = square * (2.0 / (1.0 - s) - odd)
    return (absolute(v) < 0.5).where(near, v - call("log1p", v))


def _gamma_edges(a: UOp, x: UOp, value: UOp, at_zero: float) -> UOp:
    """What both tend to at the ends, whatever the other argument is, and NaN outside."""
    value = (a.ne(a) | x.ne(x)).where(full_like(value, math.nan), value)
    value = x.eq(0).where(full_like(value, at_zero), value)
    value = (x.eq(math.inf) | a.eq(0)).where(full_like(value, 1.0 - at_zero), value)
    value = (a.eq(math.inf)).where(full_like(value, at_zero), value)
    both = (a.eq(0) & x.eq(0)) | (a.eq(math.inf) & x.eq(math.inf))
    wrong = both | (a < 0) | (x < 0) | (a.eq(0) & x.ne(x))
    return wrong.where(full_like(value, math.nan), value)


def _airy_ai(x: UOp) -> UOp:
    """Near 0 its series, far on the right an integral of K, far on the left a wave."""
    cube = x * x * x
    even, odd = full_like(x, 1.0), x
    f, g = even, odd
    for k in range(1, 40):
        even = even * cube / float((3 * k - 1) * (3 * k))
        odd = odd * cube / float((3 * k) * (3 * k + 1))
        f, g = f + even, g + odd
    near = f * _AI_0 - g * _AI_SLOPE_0
    size = absolute(x)
    zeta = call("pow", size, 1.5) * (2 / 3)
    right = _scaled_k(zeta, 1 / 3) * exp(-zeta) * call("sqrt", size / 3.0) * (1 / math.pi)
    far = (x > 0).where(right, _airy_wave(size, zeta))
    value = (size < 5.0).where(near, far)
    return absolute(x).eq(math.inf).where(full_like(x, 0.0), value)


_AI_0, _AI_SLOPE_0 = 0.355028053887817239, 0.258819403792806798


def _airy_wave(size: UOp, zeta: UOp) -> UOp:
    """The asymptotic series of Ai on the negative axis."""
    terms = [1.0]
    for k in range(1, 10):
        terms.append(terms[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    inverse = zeta.reciprocal()
    square = -(inverse * inverse)
    even = polynomial(square, tuple(terms[0::2]))
    odd = polynomial(square, tuple(terms[1::2])) * inverse
    angle = zeta - math.pi / 4
    wave = call("cos", angle) * even + call("sin", angle) * odd
    return wave / (call("sqrt", call("sqrt", size)) * math.sqrt(math.pi))


TABLE: Table = {
    "special_airy_ai": partial(_in_double, _airy_ai),
    "frexp.Tensor": _frexp,
    "igamma": partial(_in_double, lambda a, x: _igamma(a, x)[0]),
    "igammac": partial(_in_double, lambda a, x: _igamma(a, x)[1]),
    "digamma": partial(_in_double, digamma),
    "polygamma": _polygamma,
    "special_zeta": partial(_in_double, _zeta),
    "erfinv": partial(_in_double, erfinv),
    "special_ndtri": partial(_in_double, lambda p: erfinv(p * 2.0 - 1.0) * math.sqrt(2.0)),
    "i0": partial(_in_double, _bessel_i, order=0),
    "special_erfcx": partial(_in_double, _erfcx),
    "special_log_ndtr": partial(_in_double, _log_ndtr),
    **{
        name.format(order): partial(_in_double, function, order=order, **how)
        for name, function, how in (
            ("special_i{}", _bessel_i, {}),
            ("special_modified_bessel_i{}", _bessel_i, {}),
            ("special_i{}e", _bessel_i, {"scaled": True}),
            ("special_modified_bessel_k{}", _bessel_k, {}),
            ("special_scaled_modified_bessel_k{}", _bessel_k, {"scaled": True}),
            ("special_bessel_j{}", first_kind, {}),
            ("special_bessel_y{}", second_kind, {}),
        )
        for order in (0, 1)
    },
    "special_spherical_bessel_j0": partial(_in_double, _spherical),
    "angle": lambda x: elementwise_float(
        lambda v: v.ne(v).where(v, (v < 0).where(full_like(v, math.pi), 0.0)), x
    ),
}
