"""Random operators where a call was given seed and offset of the portable stream.

The tensors are filled as csrc/random/portable_random.cpp does, bit by bit.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch_tiny.lower.arithmetic import less_equal, polynomial
from torch_tiny.lower.complex_value import Complex, from_both
from torch_tiny.lower.conditions import require
from torch_tiny.lower.philox import (
    Words,
    below,
    cauchy,
    exact_exp,
    exponential,
    float32,
    negative_log,
    normal,
    uniform,
    words,
)
from torch_tiny.lower.promote import (
    HALVES,
    Lifted,
    NoLowering,
    Number,
    as_uop,
    cast,
    is_float,
    math_dtype,
)
from torch_tiny.lower.rule import Function, Rule, Table
from torch_tiny.lower.shapes import full, full_like
from torch_tiny.uops import DType, UOp, call, constant, dtypes
from torch_tiny.views import int_shape

_F32, _F64, _I64 = dtypes.float32, dtypes.float64, dtypes.int64


def _drawn(numbers: Any, target: UOp) -> Words:
    if not isinstance(numbers, list):
        raise NoLowering("its numbers are those of the memory's own device")
    return words(int_shape(target), numbers)


def _float_type(target: UOp) -> DType:
    """What its numbers are computed in."""
    if not is_float(target.dtype):
        raise NoLowering("only floats")
    return math_dtype(target.dtype)


def _scaled(
    standard: Callable[[Words, DType], UOp], self: UOp, shift: Number, scale: Number, numbers: Any,
    after: Callable[[UOp], UOp] | None = None,
) -> UOp:  # fmt: skip
    """standard * scale + shift"""
    wide = _float_type(self)
    drawn = standard(_drawn(numbers, self), wide)
    result = drawn * as_uop(scale, wide) + as_uop(shift, wide)
    return cast(after(result) if after else result, self.dtype)


def _uniform_rule(self: UOp, low: Number, high: Number, numbers: Any) -> UOp:
    wide = _float_type(self)
    start, end = as_uop(low, wide), as_uop(high, wide)
    drawn = uniform(_drawn(numbers, self), self.dtype)
    return cast(drawn * call("sub", end, start) + start, self.dtype)


def _exponential_rule(self: UOp, rate: Number, numbers: Any) -> UOp:
    wide = _float_type(self)
    return cast(exponential(_drawn(numbers, self), wide) / as_uop(rate, wide), self.dtype)


def _geometric_rule(self: UOp, p: Number, numbers: Any) -> UOp:
    w = _drawn(numbers, self)
    if self.dtype == _F64:
        unit = negative_log(call("sub", constant(1.0, _F64), as_uop(p, _F64)))
        return call("ceil", exponential(w, _F64) / unit)
    return cast(call("ceil", exponential(w, _F32) / _negative_log_of_rest(as_uop(p, _F32))),
                self.dtype)  # fmt: skip


def _negative_log_of_rest(p: UOp) -> UOp:
    """-log(1 - p) in float32, without what 1 - p loses where p is small."""
    real = partial(constant, dtype=_F32)
    bits = call("sub", real(1.0), p).bitcast(dtypes.int32)
    fraction = (bits & constant(0x7FFFFF, dtypes.int32)) | constant(126 << 23, dtypes.int32)
    m = fraction.bitcast(_F32)
    large = real(0.5) < p
    s = large.where(call("sub", real(1.0), m) / (real(1.0) + m), p / call("sub", real(2.0), p))
    halvings = (constant(126, dtypes.int32) - (bits >> 23)).cast(_F32)
    total = polynomial(s * s, [float32(1 / k) for k in range(1, 21, 2)])
    logs = large.where(halvings, real(0.0)) * real(float32(0.693147182))
    return logs + (s * real(2.0)) * total


def _bernoulli_rule(self: UOp, p: Number | UOp, numbers: Any) -> UOp:
    w = _drawn(numbers, self)
    if not isinstance(p, UOp):
        return cast(uniform(w, _F32) < as_uop(p, _F32), self.dtype)
    require(less_equal(full_like(p, 0), p) & less_equal(p, full_like(p, 1)))
    wide = _F64 if p.dtype == _F64 else _F32
    return cast(uniform(w, wide) < cast(p, wide).expand(int_shape(self)), self.dtype)


_DIGITS = {dtypes.float16: 11, dtypes.bfloat16: 8, _F32: 24, _F64: 53}


def _random_from_rule(self: UOp, first: int, to: int | None, numbers: Any) -> UOp:
    if to is None and first == -(1 << 63):
        return _integers(self, 0, 1 << 64, numbers)
    end = _last(self.dtype) + 1 if to is None else to
    if is_float(self.dtype) and max(abs(first), abs(end)) > 1 << _DIGITS[self.dtype]:
        raise NoLowering("bounds that the type does not hold exactly")
    return _integers(self, first, end - first, numbers)


def _last(dtype: DType) -> int:
    if dtype == dtypes.bool:
        return 1
    return 1 << _DIGITS[dtype] if is_float(dtype) else int(dtype.max)


def _integers(self: UOp, first: int, range_: int, numbers: Any) -> UOp:
    drawn = below(range_, _drawn(numbers, self)).cast(_I64)
    drawn = drawn + constant(first, _I64) if first else drawn
    return cast(drawn.cast(_F32) if self.dtype in HALVES else drawn, self.dtype)


def _of_both_parts(self: Complex, rule: Function, *args: Any) -> Complex:
    """The parts lie side by side, as view_as_real shows them."""
    return from_both(rule(full((*self.shape, 2), 0, self.re.dtype), *args), self.ndim)


def _complex_normal(self: Complex, mean: Number, std: Number, numbers: Any) -> Complex:
    if isinstance(std, Lifted):
        raise NoLowering("a deviation that not all devices divide as exactly")
    return _of_both_parts(self, _NORMAL, mean, std / math.sqrt(2), numbers)


_NORMAL = partial(_scaled, normal)
TABLE: Table = {
    "uniform_": Rule(_uniform_rule, lambda self, *how: _of_both_parts(self, _uniform_rule, *how)),
    "normal_": Rule(_NORMAL, _complex_normal),
    "log_normal_": partial(_scaled, normal, after=exact_exp),
    "cauchy_": partial(_scaled, cauchy),
    "exponential_": _exponential_rule,
    "geometric_": _geometric_rule,
    **dict.fromkeys(("bernoulli_.float", "bernoulli_.Tensor"), _bernoulli_rule),
    "random_": lambda self, numbers: _integers(self, 0, _last(self.dtype) + 1, numbers),
    "random_.to": lambda self, to, numbers: _random_from_rule(self, 0, to, numbers),
    "random_.from": _random_from_rule,
}
