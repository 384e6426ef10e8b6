"""Functions of complex numbers, on values of one dtype."""

import math
from collections.abc import Callable

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


def filled(z: Complex, value: float) -> Complex:
    return from_real(full_like(z.re, value))


def complex_power(z: Complex, exponent: Complex) -> Complex:
    """exp(exponent log z), and what it tends to where z is 0."""
    result = cexp(exponent * clog(z))
    at_zero = choose(is_zero(exponent), filled(z, 1.0), filled(z, 0.0))
    return choose(is_zero(z), at_zero, result)


def sgn(z: Complex) -> Complex:
    size = z.abs()
    return choose(size.eq(0), filled(z, 0.0), Complex(z.re / size, z.im / size))


def reciprocal(z: Complex) -> Complex:
    return filled(z, 1.0) / z


def cexp(z: Complex) -> Complex:
    """In two steps where exp of the real part overflows and a part of the result may not."""
    cosine, sine = call("cos", z.im), call("sin", z.im)
    first = exp((z.re > 80.0).where(z.re - 40.0, z.re))
    rest = exp((z.re > 80.0).where(full_like(z.re, 40.0), full_like(z.re, 0.0)))
    return Complex(first * cosine * rest, _times(first, sine) * rest)


def _times(size: UOp, sine: UOp) -> UOp:
    """A real number has no imaginary part, however large it is."""
    sign = call("copysign", full_like(size, 1.0), size)
    return sine.eq(0).where(sine * sign, size * sine)


def clog(z: Complex) -> Complex:
    return Complex(log(z.abs()), z.angle())


def _log1p(z: Complex) -> Complex:
    # |1+z|^2 - 1 without cancellation where z is small.
    square = z.re * (z.re + 2.0) + z.im * z.im
    near = call("log1p", square) * 0.5
    one = z.re + 1.0
    small = absolute(z.re) + absolute(z.im) < 0.5
    return Complex(small.where(near, log(call("hypot", one, z.im))), call("atan2", z.im, one))


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
    return choose(is_zero(z), Complex(full_like(t, 0.0), z.im), result)


def _sinh(z: Complex) -> Complex:
    sine, cosine = call("sin", z.im), call("cos", z.im)
    return Complex(call("sinh", z.re) * cosine, _times(call("cosh", z.re), sine))


def _cosh(z: Complex) -> Complex:
    sine, cosine = call("sin", z.im), call("cos", z.im)
    return Complex(call("cosh", z.re) * cosine, _times(call("sinh", z.re), sine))


def _tanh(z: Complex) -> Complex:
    """Kahan's formula; far from the imaginary axis 1, and what is left of the other part."""
    t, s = call("tan", z.im), call("sinh", z.re)
    beta = t * t + 1.0
    norm = beta * s * s + 1.0
    near = Complex(beta * call("sqrt", s * s + 1.0) * s / norm, t / norm)
    rest = call("sin", z.im * 2.0) * exp(absolute(z.re) * -2.0) * 2.0
    far = Complex(call("copysign", full_like(s, 1.0), z.re), rest)
    return choose(absolute(z.re) > 20.0, far, near)


def _asinh(z: Complex) -> Complex:
    # Odd: on the right half plane nothing cancels.
    flip = (z.re < 0) | (z.re.eq(0) & (z.im < 0))
    w = choose(flip, -z, z)
    root = sqrt(w * w + filled(w, 1.0))
    result = clog(w + root)
    return choose(flip, -result, result)


def _acosh(z: Complex) -> Complex:
    one = filled(z, 1.0)
    return clog(z + sqrt(z + one) * sqrt(z - one))


def _atanh(z: Complex) -> Complex:
    a, b = z.re, z.im
    square = (1.0 - a) * (1.0 - a) + b * b
    re = call("log1p", a * 4.0 / square) * 0.25
    im = call("atan2", b * 2.0, (1.0 - a) * (a + 1.0) - b * b) * 0.5
    return Complex(re, im)


def _about_i(function: ComplexFunction) -> ComplexFunction:
    """sin, tan, asin, atan from sinh, tanh, asinh, atanh: -i f(iz)."""
    return lambda z: -imaginary(function(imaginary(z)))


def _in_double(function: ComplexFunction) -> ComplexFunction:
    def rule(z: Complex) -> Complex:
        part = z.re.dtype
        return function(z.each(lambda x: cast(x, dtypes.float64))).each(lambda x: cast(x, part))

    return rule


def _sinc(z: Complex) -> Complex:
    turned = z * math.pi
    return choose(is_zero(z), filled(z, 1.0), COMPLEX_FUNCTIONS["sin"](turned) / turned)


def _acos(z: Complex) -> Complex:
    return Complex(full_like(z.re, math.pi / 2), full_like(z.im, 0.0)) - _about_i(_asinh)(z)


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
    "silu": lambda z: z * COMPLEX_FUNCTIONS["sigmoid"](z),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "sin": _about_i(_sinh),
    "cos": lambda z: _cosh(imaginary(z)),
    "tan": _about_i(_tanh),
    "asinh": _in_double(_asinh),
    "acosh": _in_double(_acosh),
    "atanh": _in_double(_atanh),
    "asin": _in_double(_about_i(_asinh)),
    "acos": _in_double(_acos),
    "atan": _in_double(_about_i(_atanh)),
    "sinc": _sinc,
}


def any_nan(z: Complex) -> UOp:
    return is_nan(z.re) | is_nan(z.im)
