"""Functions of complex numbers, on values of one dtype."""

import math
from collections.abc import Callable
from functools import partial

from torch_tiny.lower.arithmetic import absolute, exp, is_nan, log
from torch_tiny.lower.complex_value import Complex, from_real, imaginary
from torch_tiny.lower.promote import cast
from torch_tiny.lower.shapes import full_like
from torch_tiny.uops import UOp, call, dtypes

ComplexFunction = Callable[[Complex], Complex]


def choose(condition: UOp, yes: Complex, no: Complex) -> Complex:
    return Complex(condition.where(yes.re, no.re), condition.where(yes.im, no.im))


def is_zero(z: Complex) -> UOp:
    return z.re.eq(0) & z.im.eq(0)


def any_nan(z: Complex) -> UOp:
    return is_nan(z.re) | is_nan(z.im)


def filled(z: Complex, value: float) -> Complex:
    return from_real(full_like(z.re, value))


def complex_power(z: Complex, exponent: Complex) -> Complex:
    """exp(exponent log z), which where z is 0 depends on the sign of the real part alone, unless an
    infinite imaginary part meets a zero of the logarithm."""
    result = cexp(exponent * clog(z))
    lost = _is_infinite(exponent.im) & _is_infinite(exponent.re).logical_not()
    nothing = full_like(exponent.re, math.nan)
    vanishes = (exponent.re > 0) & lost.logical_not()
    grows = (exponent.re < 0) & lost.logical_not()
    at_zero = Complex(vanishes.where(-0.0, grows.where(math.inf, nothing)),
                      vanishes.where(-0.0, nothing))  # fmt: skip
    return choose(is_zero(z), at_zero, result)


def sgn(z: Complex) -> Complex:
    size = z.abs()
    return choose(size.eq(0), filled(z, 0.0), Complex(z.re / size, z.im / size))


def reciprocal(z: Complex) -> Complex:
    return filled(z, 1.0) / z


def _is_infinite(x: UOp) -> UOp:
    return absolute(x).eq(math.inf)


def _any_infinite(z: Complex) -> UOp:
    return _is_infinite(z.re) | _is_infinite(z.im)


def _is_wild(x: UOp) -> UOp:
    """Whether it is infinite or NaN."""
    return (absolute(x) < math.inf).logical_not()


def _is_lost(z: Complex) -> UOp:
    """Whether the real part is infinite, and the imaginary part gives no direction."""
    return _is_infinite(z.re) & _is_wild(z.im)


def _mended(x: UOp, known: UOp, value: UOp) -> UOp:
    """Products of 0 and infinity or NaN, where Annex G of C99 knows better than NaN."""
    return (is_nan(x) & known).where(value, x)


def _signed(value: float, sign: UOp) -> UOp:
    return call("copysign", full_like(sign, value), sign)


def _halved(x: UOp) -> tuple[UOp, UOp]:
    """Where exp(x) may overflow and its product with a small number may not; half of x there."""
    large = (absolute(x) > 88.0) & (absolute(x) < math.inf)
    return large, large.where(x * 0.5, x)


def cexp(z: Complex) -> Complex:
    large, half = _halved(z.re)
    first, one = exp(half), full_like(half, 1.0)
    rest = large.where(first, one)
    cosine = _is_lost(z).where(one, call("cos", z.im))
    known = z.im.eq(0) | z.re.eq(-math.inf)
    im = _mended(first * call("sin", z.im) * rest, known, _signed(0.0, z.im))
    return Complex(first * cosine * rest, im)


def clog(z: Complex) -> Complex:
    return Complex(log(z.abs()), z.angle())


def _log1p(z: Complex) -> Complex:
    # |1+z|^2 - 1 without cancellation where z is small.
    square = z.re * (z.re + 2.0) + z.im * z.im
    near = call("log1p", square) * 0.5
    one = z.re + 1.0
    small = absolute(z.re) + absolute(z.im) < 0.5
    re = is_zero(z).where(z.re, small.where(near, log(call("hypot", one, z.im))))
    # PyTorch multiplies by z / ((1 + z) - 1), which infinity makes NaN, where that is not 1.
    lost = ((one - 1.0).ne(z.re) | is_nan(z.im)) & _is_wild(z.im)
    nan = full_like(one, math.nan)
    return choose(lost, Complex(nan, nan), Complex(re, call("atan2", z.im, one)))


def _expm1(z: Complex) -> Complex:
    half = call("sin", z.im * 0.5)
    re = call("expm1", z.re) * call("cos", z.im) - half * half * 2.0
    return Complex(re, exp(z.re) * call("sin", z.im))


def sqrt(z: Complex) -> Complex:
    """The root with a real part that is not negative."""
    t = call("sqrt", (z.abs() + absolute(z.re)) * 0.5)
    other = z.im / (t * 2.0)
    right = Complex(t, other)
    left = Complex(absolute(other), call("copysign", t, z.im))
    result = choose(z.re < 0, left, right)
    # Both parts of a root are infinite where the imaginary part is, and 0 where all is.
    known = _is_infinite(z.im) | is_zero(z)
    return choose(known, Complex(absolute(z.im), z.im), result)


def _sinh(z: Complex) -> Complex:
    large, half = _halved(z.re)
    size, other = call("sinh", half), call("cosh", half)
    rest = large.where(other * 2.0, full_like(half, 1.0))
    cosine = _is_lost(z).where(_signed(1.0, z.re), call("cos", z.im))
    re = _mended(size * cosine * rest, z.re.eq(0), z.re)
    return Complex(re, _mended(other * call("sin", z.im) * rest, z.im.eq(0), z.im))


def _cosh(z: Complex) -> Complex:
    large, half = _halved(z.re)
    size, other = call("cosh", half), call("sinh", half)
    rest = large.where(size * 2.0, full_like(half, 1.0))
    cosine = _is_lost(z).where(full_like(half, 1.0), call("cos", z.im))
    im = _mended(other * call("sin", z.im) * rest, z.re.eq(0), full_like(half, 0.0))
    im = _mended(im, z.im.eq(0), (z.re < 0).where(-z.im, z.im))
    return Complex(size * cosine * rest, im)


def _tanh(z: Complex) -> Complex:
    """Kahan's formula; far from the imaginary axis 1, and what is left of the other part."""
    t = call("tan", _is_lost(z).where(_signed(1.0, z.im), z.im))
    s = call("sinh", z.re)
    beta = t * t + 1.0
    norm = beta * s * s + 1.0
    re = _mended(beta * call("sqrt", s * s + 1.0) * s / norm, z.re.eq(0), z.re)
    near = Complex(re, _mended(t / norm, z.im.eq(0), z.im))
    far = Complex(_signed(1.0, z.re), t / beta * exp(absolute(z.re) * -2.0) * 4.0)
    return choose((absolute(z.re) > 20.0) & t.eq(t), far, near)


def _roots(z: Complex) -> tuple[Complex, Complex, UOp, UOp]:
    """Of 1 - z and 1 + z, for Kahan's asin and acos; where z is infinite; asin's other part."""
    a, b = sqrt(Complex(1.0 - z.re, -z.im)), sqrt(Complex(z.re + 1.0, z.im))
    infinite = _any_infinite(z)
    size = infinite.where(_signed(math.inf, z.im), a.re * b.im - a.im * b.re)
    return a, b, infinite, call("asinh", size)


def _asin(z: Complex) -> Complex:
    a, b, infinite, im = _roots(z)
    beside = infinite.where(absolute(z.im), a.re * b.re - a.im * b.im)
    return Complex(_mended(call("atan2", z.re, beside), z.re.eq(0), z.re), im)


def _acos(z: Complex) -> Complex:
    a, b, infinite, im = _roots(z)
    above = infinite.where(absolute(z.im), a.re * b.re * 2.0)
    beside = infinite.where(z.re, (b.re - a.re) * (b.re + a.re))
    re = call("atan2", above, beside)
    return Complex(_mended(re, z.re.eq(0), full_like(re, math.pi / 2)), -im)


def _acosh(z: Complex) -> Complex:
    result = _acos(z)
    return Complex(absolute(result.im), call("copysign", result.re, z.im))


def _atanh(z: Complex) -> Complex:
    infinite = _any_infinite(z)
    # Squares overflow where z is large, and vanish where it is next to 1.
    scale = (absolute(z.re) + absolute(z.im) > 1e100).where(full_like(z.re, 1e-150), 1.0)
    a, b = absolute(z.re) * scale, absolute(z.im) * scale
    square = (scale - a) * (scale - a) + b * b
    next_to = square < 1e-300
    size = call("log1p", next_to.where(2.0 / b, a * 4.0 / square * scale))
    re = size * next_to.where(full_like(a, 0.5), 0.25)
    re = (infinite | a.eq(0)).where(full_like(a, 0.0), re)
    im = call("atan2", b * scale * 2.0, (scale - a) * (a + scale) - b * b) * 0.5
    im = (infinite & b.eq(b)).where(full_like(b, math.pi / 2), im)
    return Complex(call("copysign", re, z.re), call("copysign", im, z.im))


def _about_i(function: ComplexFunction, z: Complex) -> Complex:
    """sin, tan, asinh, atan from sinh, tanh, asin, atanh: -i f(iz), by parts that trade places."""
    result = function(Complex(z.im, z.re))
    return Complex(result.im, result.re)


def _in_double(function: ComplexFunction, z: Complex) -> Complex:
    part = z.re.dtype
    return function(z.each(lambda x: cast(x, dtypes.float64))).each(lambda x: cast(x, part))


def _rounded_acos(z: Complex) -> Complex:
    result = _in_double(_acos, z)
    # PyTorch's is pi/2 - asin for complex128, which has no -0.
    return result + filled(z, 0.0) if z.re.dtype == dtypes.float64 else result


def _sinc(z: Complex) -> Complex:
    turned = z * math.pi
    return choose(is_zero(z), filled(z, 1.0), COMPLEX_FUNCTIONS["sin"](turned) / turned)


COMPLEX_FUNCTIONS: dict[str, ComplexFunction] = {
    "neg": lambda z: -z,
    "positive": lambda z: z,
    "square": lambda z: z * z,
    "reciprocal": reciprocal,
    "sgn": sgn,
    "exp": cexp,
    "exp2": lambda z: cexp(z * math.log(2.0)),
    "expm1": _expm1,
    "log": clog,
    "log2": lambda z: clog(z) * (1 / math.log(2.0)),
    "log10": lambda z: clog(z) * (1 / math.log(10.0)),
    "log1p": _log1p,
    "sqrt": sqrt,
    "rsqrt": lambda z: reciprocal(sqrt(z)),
    "sigmoid": lambda z: reciprocal(cexp(-z) + filled(z, 1.0)),
    "silu": lambda z: z / (cexp(-z) + filled(z, 1.0)),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "sin": partial(_about_i, _sinh),
    "cos": lambda z: _cosh(imaginary(z)),
    "tan": partial(_about_i, _tanh),
    "asinh": partial(_in_double, partial(_about_i, _asin)),
    "acosh": partial(_in_double, _acosh),
    "atanh": partial(_in_double, _atanh),
    "asin": partial(_in_double, _asin),
    "acos": _rounded_acos,
    "atan": partial(_in_double, partial(_about_i, _atanh)),
    "sinc": _sinc,
}
