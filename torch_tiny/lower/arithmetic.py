"""Arithmetic on operands of one dtype, right for NaN, zero divisors and small integers."""

import math
from collections.abc import Sequence
from functools import partial

from torch_tiny.lower.conditions import require
from torch_tiny.lower.promote import HALVES, is_float
from torch_tiny.lower.shapes import full_like
from torch_tiny.uops import UOp, call, dtypes


def less_equal(a: UOp, b: UOp) -> UOp:
    """tinygrad's <= is not(>), which holds for NaN."""
    return (a < b) | a.eq(b) if is_float(a.dtype) else a <= b


def is_nan(x: UOp) -> UOp:
    return x.ne(x) if is_float(x.dtype) else full_like(x, False, dtypes.bool)


def maximum(a: UOp, b: UOp) -> UOp:
    if is_float(a.dtype):
        return call("maximum", a, b)
    return (a | b) if a.dtype == dtypes.bool else (a < b).where(b, a)


def minimum(a: UOp, b: UOp) -> UOp:
    if is_float(a.dtype):
        return call("minimum", a, b)
    return (a & b) if a.dtype == dtypes.bool else (b < a).where(b, a)


def absolute(x: UOp) -> UOp:
    if is_float(x.dtype):
        return call("fabs", x)
    return (x < 0).where(-x, x) if x.dtype not in (dtypes.bool, dtypes.uint8) else x


def signbit(x: UOp) -> UOp:
    if is_float(x.dtype):
        return call("copysign", full_like(x, 1.0), x) < 0
    return x < 0 if x.dtype not in (dtypes.bool, dtypes.uint8) else full_like(x, False, dtypes.bool)


def sigmoid(x: UOp) -> UOp:
    return (call("exp", -x) + 1.0).reciprocal()


tanh = partial(call, "tanh")
exp = partial(call, "exp")
log = partial(call, "log")


def softplus(x: UOp, beta: UOp, threshold: UOp) -> UOp:
    scaled = x * beta
    return (threshold < scaled).where(x, call("log1p", exp(scaled)) / beta)


def log_sigmoid(x: UOp) -> UOp:
    return minimum(x, full_like(x, 0)) - call("log1p", exp(-absolute(x)))


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The coefficient of the lowest power comes first."""
    result = full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def log_add(a: UOp, b: UOp, base: str = "exp", factor: float = 1.0) -> UOp:
    """log(exp(a) + exp(b)), or of base 2 with log2(e) as the factor."""
    top = maximum(a, b)
    same_infinity = a.eq(b) & absolute(a).eq(math.inf)
    rest = call("log1p", call(base, -absolute(a - b)))
    return same_infinity.where(a, top + (rest if factor == 1.0 else rest * factor))


def add(a: UOp, b: UOp) -> UOp:
    return a | b if a.dtype == dtypes.bool else a + b


def mul(a: UOp, b: UOp) -> UOp:
    return a & b if a.dtype == dtypes.bool else a * b


def _safe_divisor(b: UOp) -> UOp:
    # The processor traps on n/0 and on the lowest integer / -1.
    traps = b.eq(0) if b.dtype == dtypes.uint8 else b.eq(0) | b.eq(-1)
    return traps.where(full_like(b, 1), b)


def _int_divide(a: UOp, b: UOp, floor: bool) -> UOp:
    require(b.ne(0))
    quotient = a.div(_safe_divisor(b), rounding_mode="floor" if floor else "trunc")
    return quotient if a.dtype == dtypes.uint8 else b.eq(-1).where(-a, quotient)


def _int_remainder(a: UOp, b: UOp, floor: bool) -> UOp:
    require(b.ne(0))
    safe = _safe_divisor(b)
    return a - a.div(safe, rounding_mode="floor" if floor else "trunc") * safe


def floor_divide(a: UOp, b: UOp) -> UOp:
    if not is_float(a.dtype):
        return _int_divide(a, b, floor=True)
    # As c10::div_floor_floating: exact where a/b would round up to the next integer.
    mod = call("fmod", a, b)
    quotient = (a - mod) / b
    quotient = (mod.ne(0) & ((b < 0) ^ (mod < 0))).where(quotient - 1.0, quotient)
    floored = call("floor", quotient)
    floored = ((quotient - floored) > 0.5).where(floored + 1.0, floored)
    result = quotient.ne(0).where(floored, call("copysign", full_like(a, 0.0), a / b))
    return b.eq(0).where(a / b, result)


def trunc_divide(a: UOp, b: UOp) -> UOp:
    return call("trunc", a / b) if is_float(a.dtype) else _int_divide(a, b, floor=False)


def remainder(a: UOp, b: UOp) -> UOp:
    if not is_float(a.dtype):
        return _int_remainder(a, b, floor=True)
    mod = call("fmod", a, b)
    return (mod.ne(0) & ((b < 0) ^ (mod < 0))).where(mod + b, mod)


def fmod(a: UOp, b: UOp) -> UOp:
    return call("fmod", a, b) if is_float(a.dtype) else _int_remainder(a, b, floor=False)


def next_after(a: UOp, b: UOp) -> UOp:
    """call("nextafter") is in the type that the halves are computed in."""
    if a.dtype not in HALVES:
        return call("nextafter", a, b)
    moved = _next_half(a, a < b) if a.dtype == dtypes.float16 else _next_bfloat(a, b)
    return (is_nan(a) | is_nan(b)).where(a + b, a.eq(b).where(b, moved))


def _next_half(a: UOp, up: UOp) -> UOp:
    """More than half a step on, rounded; at a power of two the step down is half as long."""
    x = a.cast(dtypes.float32)
    exponent = (x.bitcast(dtypes.int32) >> 23) & 255
    step = ((maximum(exponent, full_like(exponent, 113)) - 10) << 23).bitcast(dtypes.float32)
    moved = x + up.where(step * 0.6, step * -0.6)
    infinite = absolute(x).eq(math.inf)
    return infinite.where(call("copysign", full_like(x, 65504.0), x), moved).cast(a.dtype)


def _next_bfloat(a: UOp, b: UOp) -> UOp:
    """Numbers that follow each other in size do so as integers too."""
    bits, sign = (x.bitcast(dtypes.int16).cast(dtypes.int32) for x in (a, b))
    moved = (a < b).eq(a > 0).where(bits + 1, bits - 1)
    moved = a.eq(0).where((sign & -0x8000) | 1, moved)
    return moved.cast(dtypes.int16).bitcast(a.dtype)


def int_power(x: UOp, exponent: int) -> UOp:
    """Repeated squares; a negative power of an integer is 0 unless it is 1 or -1."""
    if exponent < 0:
        odd = full_like(x, -1 if exponent % 2 else 1)
        return x.eq(1).where(full_like(x, 1), x.eq(-1).where(odd, full_like(x, 0)))
    result, square = full_like(x, 1), x
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        square = square * square if exponent else square
    return result


def int_power_by(x: UOp, exponent: UOp) -> UOp:
    """The same for an exponent of the data below 64: its bits say which squares count."""
    plain = (x <= 1) & (x >= -1) if x.dtype != dtypes.uint8 else x <= 1
    require(plain | (exponent < 64))
    result, square = full_like(x, 1), x
    for bit in range(6):
        result = ((exponent >> bit) & 1).ne(0).where(result * square, result)
        square = square * square
    if x.dtype == dtypes.uint8:
        return (plain & exponent.ne(0)).where(x, result)
    odd = (exponent & 1).ne(0).where(x, x * x)
    zero = full_like(x, 0)
    rare = exponent.eq(0).where(full_like(x, 1), (exponent < 0).where(plain.where(odd, zero), odd))
    return (plain | (exponent < 0)).where(rare, result)


def shift(a: UOp, b: UOp, left: bool) -> UOp:
    bits = 8 * a.dtype.itemsize
    outside = (b < 0) | (b >= bits)
    amount = outside.where(full_like(b, 0 if left else bits - 1), b)
    shifted = (a << amount) if left else (a >> amount)
    is_empty = left or a.dtype == dtypes.uint8  # else signs are left
    return outside.where(full_like(a, 0), shifted) if is_empty else shifted
