"""The portable stream of random numbers: Philox4x32-10 and the distributions made from it.

csrc/random/philox.h has the same formulas in C++; docs/random.md says what each one is. Integers
and single IEEE operations only, in a fixed order, so that both give the same bits.
"""

import math
import struct
from collections.abc import Sequence
from functools import partial

from torch_tiny.lower.arithmetic import polynomial
from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.shapes import arange, full
from torch_tiny.uops import DType, UOp, call, constant, dtypes
from torch_tiny.views import int_shape

Words = tuple[UOp, UOp, UOp, UOp]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_U32, _U64, _I64 = dtypes.uint32, dtypes.uint64, dtypes.int64
_F32, _F64 = dtypes.float32, dtypes.float64


def words(shape: tuple[int, ...], numbers: Sequence[Lifted]) -> Words:
    """The four words of each element: the key is the seed, the counter (element, offset)."""
    wide = (number.uop.cast(_U64) for number in numbers)
    seed, offset = ((_low(x), _high(x)) for x in wide)
    count = math.prod(shape)
    if count >= 1 << 31:
        raise NoLowering("more elements than an index has")
    element = arange(count).cast(_U32).reshape(shape)
    zero = full(shape, 0, _U32)
    c: Words = (element, zero, offset[0].expand(shape), offset[1].expand(shape))
    for i in range(10):
        first, second = (c[2 * k].cast(_U64) * constant(_MULTIPLIERS[k], _U64) for k in (0, 1))
        keys = [_key(seed[k], i * _WEYL[k]).expand(shape) for k in (0, 1)]
        c = (
            _high(second) ^ c[1] ^ keys[0],
            _low(second),
            _high(first) ^ c[3] ^ keys[1],
            _low(first),
        )
    return c


def _key(half: UOp, added: int) -> UOp:
    # In 64 bits, where nothing wraps around: tinygrad's algebra takes integers for numbers.
    return _low(half.cast(_U64) + constant(added & _LOW, _U64))


def _low(x: UOp) -> UOp:
    return (x & constant(_LOW, _U64)).cast(_U32)


def _high(x: UOp) -> UOp:
    return (x >> 32).cast(_U32)


def _wide(high: UOp, low: UOp) -> UOp:
    return (high.cast(_U64) << 32) | low.cast(_U64)


def _product(a: UOp, b: UOp) -> UOp:
    return a.cast(_U64) * b.cast(_U64)


# --- uniform ---


def uniform(w: Words, dtype: DType) -> UOp:
    """In [0, 1) with as many bits as the type has."""
    if dtype == _F64:
        return _uniform_double(w[0], w[1])
    bits = {dtypes.float16: 11, dtypes.bfloat16: 8}.get(dtype, 24)
    return (w[0] >> (32 - bits)).cast(dtypes.int32).cast(_F32) * constant(2.0**-bits, _F32)


def _uniform_double(high: UOp, low: UOp, added: int = 0) -> UOp:
    whole = (_wide(high, low) >> 11).cast(_I64)
    return (whole + constant(added, _I64)).cast(_F64) * constant(2.0**-53, _F64)


def below(range_: int, w: Words) -> UOp:
    """A uint64 in [0, range)."""
    if range_ == 1 << 64:
        return _wide(w[0], w[1])
    if range_ > 1 << 32:
        return _high_product(w[0], w[1], range_)
    factor = constant(range_, _U64)
    return (w[0].cast(_U64) * factor + ((w[1].cast(_U64) * factor) >> 32)) >> 32


def _high_product(high: UOp, low: UOp, factor: int) -> UOp:
    """The upper 64 bits of a product with a number of 64 bits."""
    upper, lower = constant(factor >> 32, _U32), constant(factor & _LOW, _U32)
    cross = _product(low, upper) + (_product(low, lower) >> 32)
    middle = _product(high, lower) + _low(cross).cast(_U64)
    return _product(high, upper) + (cross >> 32) + (middle >> 32)


# --- logarithm, sine, square root in 32-bit integers ---

_LOG = (
    445643124, -516360679, 86060115, -19124247, 4781049, -1276196, 354534, -98442, 28672, -11347,
    3420,
)  # fmt: skip
_SINE = (3373259426, 1387197332, 171138563, 10053783, 344144, 7370)


def _negative_log2(word: UOp) -> tuple[UOp, UOp]:
    """-log2(word / 2^32): an integer, and 30 bits after the point; 0 counts as 1."""
    word = word.eq(0).where(constant(1, _U32), word)
    zeros = full(int_shape(word), 0, _U32)
    for step in (16, 8, 4, 2, 1):
        small = word < constant(1 << (32 - step), _U32)
        # Only bits that are 0 leave at the top; in 64 bits they would not leave at all.
        word = small.where(_low(word.cast(_U64) << step), word)
        zeros = small.where(zeros + constant(step, _U32), zeros)
    x = (word.cast(_I64) - constant(0xC0000000, _I64)) * 2
    total = full(int_shape(word), _LOG[-1], _I64)
    for coefficient in _LOG[-2::-1]:
        total = ((x * total) >> 31) + constant(coefficient, _I64)
    total = (total < 0).where(constant(0, _I64), total)
    most = constant((1 << 30) - 1, _I64)
    return zeros, (total > most).where(most, total).cast(_U32)


def _sine_over(y: UOp) -> UOp:
    """sin(pi/2 y / 2^32) / y, scaled by 2^63."""
    square = _high(_product(y, y))
    total = full(int_shape(y), _SINE[-1], _U32)
    for coefficient in _SINE[-2::-1]:
        # It never gets below 0.
        total = constant(coefficient, _U32) - _high(_product(square, total))
    return total


def _root(n: UOp) -> UOp:
    """The largest integer whose square is at most n < 2^48, whatever sqrt's last bits are."""
    near = (n >> 24).cast(_U32).cast(_F32) * constant(2.0**24, _F32)
    near = near + (n & constant(0xFFFFFF, _U64)).cast(_U32).cast(_F32)
    guess = call("sqrt", near).cast(dtypes.int32).cast(_I64)
    eight = constant(8, _I64)
    found = ((guess < eight).where(eight, guess) - eight).cast(_U64)
    for step in (8, 4, 2, 1):
        larger = found + constant(step, _U64)
        found = (larger * larger <= n).where(larger, found)
    return found


# --- standard distributions ---


def normal(w: Words, dtype: DType) -> UOp:
    if dtype == _F64:
        return _normal_double(w)
    whole, part = _negative_log2(w[0])
    log = (whole.cast(_U64) << 27) + (part >> 3).cast(_U64)
    length = _root((log * constant(2977044472, _U64)) >> 16)  # 2 ln(2) 2^31
    quarter, within = w[2] >> 30, _low(w[2].cast(_U64) << 2)
    y = (quarter & 1).ne(0).where(within ^ constant(_LOW, _U32), within)
    sine = _high(_product(y, _sine_over(y))).cast(_U64)
    size = ((length * sine) >> 31).cast(dtypes.int32).cast(_F32) * constant(2.0**-21, _F32)
    return (quarter & 2).ne(0).where(call("neg", size), size)


def exponential(w: Words, dtype: DType) -> UOp:
    if dtype == _F64:
        return negative_log(_uniform_double(w[0], w[1], 1))
    whole, part = _negative_log2(w[0])
    odd = (part * 2 + 1).cast(_F32) * constant(2.0**-31, _F32)
    return (whole.cast(_F32) + odd) * constant(float32(0.693147182), _F32)


def cauchy(w: Words, dtype: DType) -> UOp:
    if dtype == _F64:
        y = _uniform_double(_low(w[0].cast(_U64) << 1), w[1])
        tangent = _sine_double(y) / _sine_double(constant(1.0, _F64) - y)
    else:
        first = _low(w[0].cast(_U64) << 1)
        rest = first ^ constant(_LOW, _U32)
        sine, cosine = (x.cast(_F32) * _sine_over(x).cast(_F32) for x in (first, rest))
        tangent = sine / cosine
    return (w[0] >> 31).ne(0).where(call("neg", tangent), tangent)


# --- in double precision ---

_SINE_DOUBLE = (
    1.5707963267948966, -0.6459640975062463, 0.07969262624616705, -0.004681754135318688,
    0.00016044118478735983, -3.598843235212085e-06, 5.692172921967927e-08, -6.688035109811468e-10,
    6.0669357311061955e-12, -4.377065467313742e-14, 2.571422892860474e-16,
)  # fmt: skip


def negative_log(x: UOp) -> UOp:
    """-log(x) for 0 < x <= 1 that is not subnormal."""
    bits = x.bitcast(_I64)
    fraction = ((bits & constant((1 << 52) - 1, _I64)) | constant(1022 << 52, _I64)).bitcast(_F64)
    small = fraction < constant(0.70710678118654752, _F64)
    f = small.where(fraction * constant(2.0, _F64), fraction)
    power = ((bits >> 52) - constant(1022, _I64) - small.cast(_I64)).cast(_F64)
    one = constant(1.0, _F64)
    s = call("sub", f, one) / (f + one)
    total = polynomial(s * s, [1.0 / k for k in range(1, 27, 2)])
    log = power * constant(0.69314718055994531, _F64) + (s * constant(2.0, _F64)) * total
    return call("neg", log)


def _sine_double(y: UOp) -> UOp:
    return y * polynomial(y * y, _SINE_DOUBLE)


def _normal_double(w: Words) -> UOp:
    log = negative_log(_uniform_double(w[0], w[1], 1))
    length = call("sqrt", constant(2.0, _F64) * log)
    quarter = w[2] >> 30
    within = _uniform_double(_low(w[2].cast(_U64) << 2), w[3])
    turned = (quarter & 1).ne(0).where(call("sub", constant(1.0, _F64), within), within)
    size = length * _sine_double(turned)
    return (quarter & 2).ne(0).where(call("neg", size), size)


# --- the exponential function ---

_EXP_FLOAT = (
    1.98412698e-4, 1.38888889e-3, 8.33333377e-3, 4.16666679e-2, 1.66666672e-1, 0.5,
)  # fmt: skip


def exact_exp(x: UOp) -> UOp:
    if x.dtype == _F64:
        bounds, log2 = (-745.0, 710.0), 1.4426950408889634
        ln2 = (0.693147180369123816490, 1.90821492927058770002e-10)
        terms = [1.0 / math.factorial(k) for k in range(14, 1, -1)]
        bits, bias, shift = _I64, 1023, 52
    else:
        bounds, log2 = (-103.0, 89.0), float32(1.44269504)
        ln2 = (0.693359375, float32(-2.12194442e-4))
        terms = [float32(k) for k in _EXP_FLOAT]
        bits, bias, shift = dtypes.int32, 127, 23
    real = partial(constant, dtype=x.dtype)
    x = (x < real(bounds[0])).where(real(bounds[0]), x)
    x = (real(bounds[1]) < x).where(real(bounds[1]), x)
    scaled = x * real(log2)
    below_zero = scaled < real(0.0)
    power = below_zero.where(call("sub", scaled, real(0.5)), scaled + real(0.5)).cast(bits)
    n = power.cast(x.dtype)
    r = call("sub", call("sub", x, n * real(ln2[0])), n * real(ln2[1]))
    total = polynomial(r, terms[::-1])
    total = ((total * r) * r + r) + real(1.0)
    half = power >> 1
    first, second = (
        ((k + constant(bias, bits)) << shift).bitcast(x.dtype) for k in (half, power - half)
    )
    return (total * first) * second


def float32(value: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
