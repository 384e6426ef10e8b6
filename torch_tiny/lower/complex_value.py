"""A complex value: two real UOps of one shape. Its memory holds them in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_tiny import scalar_types as types
from torch_tiny.lower.arithmetic import absolute
from torch_tiny.lower.promote import (
    Lifted,
    Operand,
    as_uop,
    cast,
    float_dtype,
    math_dtype,
    result_dtype,
)
from torch_tiny.lower.shapes import DTYPES, arange, full_like
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import ViewSpec, cut, int_shape, read, write

PARTS = {
    types.complex32: types.float16,
    types.complex64: types.float32,
    types.complex128: types.float64,
}
_OF_PARTS = {DTYPES[part]: whole for whole, part in PARTS.items()}


def _of_both(movement: str) -> Callable[..., Complex]:
    """The same of each part."""
    return lambda z, *how: z.each(lambda x: getattr(x, movement)(*how))


@dataclass(frozen=True)
class Complex:
    """re + i im."""

    re: UOp
    im: UOp
    is_number: bool = False
    """A Python number, which does not decide how precise a result is."""

    @property
    def dtype(self) -> types.dtype:
        return _OF_PARTS[self.re.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return int_shape(self.re)

    @property
    def ndim(self) -> int:
        return self.re.ndim

    def each(self, function: Callable[[UOp], UOp]) -> Complex:
        """The function of both parts; for what is linear with real coefficients."""
        return Complex(function(self.re), function(self.im))

    reshape = _of_both("reshape")
    expand = _of_both("expand")
    shrink = _of_both("shrink")
    transpose = _of_both("transpose")
    squeeze = _of_both("squeeze")
    unsqueeze = _of_both("unsqueeze")
    contiguous = _of_both("contiguous")

    def conj(self) -> Complex:
        return Complex(self.re, -self.im)

    def __neg__(self) -> Complex:
        return self.each(lambda x: -x)

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Complex | UOp | float) -> Complex:
        if not isinstance(other, Complex):
            return self.each(lambda x: x * other)
        return Complex(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    def __truediv__(self, other: Complex) -> Complex:
        # By the larger part, whose square might overflow, as on the CPU. By zero, part by part.
        a, b, c, d = self.re, self.im, other.re, other.im
        by_re = (absolute(c) < absolute(d)).logical_not()
        large, small = by_re.where(c, d), by_re.where(d, c)
        ratio = small / large
        scale = (large + small * ratio).reciprocal()
        re = by_re.where(a + b * ratio, a * ratio + b) * scale
        im = by_re.where(b - a * ratio, b * ratio - a) * scale
        zero = c.eq(0) & d.eq(0)
        return Complex(zero.where(a / absolute(c), re), zero.where(b / absolute(d), im))

    def abs(self) -> UOp:
        return call("hypot", self.re, self.im)

    def angle(self) -> UOp:
        return call("atan2", self.im, self.re)


def imaginary(x: Complex) -> Complex:
    """i x"""
    return Complex(-x.im, x.re)


def from_real(x: UOp) -> Complex:
    return Complex(x, full_like(x, 0))


def from_both(x: UOp, dim: int) -> Complex:
    """Of real and imaginary parts that follow each other along a dimension."""
    re, im = (cut(x, dim, part, part + 1).squeeze(dim) for part in range(2))
    return Complex(re, im)


def read_complex(flat: UOp, spec: ViewSpec) -> Complex:
    """The value of a complex view over the flat buffer of its parts."""
    return Complex(read(flat, _part(spec, 0)), read(flat, _part(spec, 1)))


def write_complex(flat: UOp, spec: ViewSpec, value: Complex) -> UOp:
    """The flat buffer after `value` was written through a complex view of it."""
    re, im = (p.cast(flat.dtype).expand(spec.shape).unsqueeze(-1) for p in (value.re, value.im))
    both = _part(spec, 0)
    both = ViewSpec((*both.shape, 2), (*both.strides, 1), both.offset)
    return write(flat, both, arange(2).eq(0).where(re, im))


def _part(spec: ViewSpec, number: int) -> ViewSpec:
    return ViewSpec(spec.shape, tuple(2 * s for s in spec.strides), 2 * spec.offset + number)


def part_dtype(*operands: Operand | Complex) -> DType:
    """The dtype of the parts of what PyTorch's promotion gives."""
    part = float_dtype(result_dtype(*(_deciding(x) for x in operands)))
    return dtypes.float32 if part == dtypes.bfloat16 else part  # of which there is no complex type


def as_complex(x: Operand | Complex | complex, part: DType) -> Complex:
    """A tensor or number with parts of a dtype."""
    if isinstance(x, Complex):
        return x.each(lambda p: cast(p, part))
    if isinstance(x, complex):
        return Complex(as_uop(x.real, part), as_uop(x.imag, part), True)
    return from_real(as_uop(x, part))


def promoted(*operands: Operand | Complex) -> list[Complex]:
    """The operands with parts of one dtype; halves in float32."""
    part = math_dtype(part_dtype(*operands))
    return [as_complex(x, part) for x in operands]


def as_value(x: Any, like: UOp | Complex) -> Any:
    """A result in the dtype of the tensor that it is written to."""
    if isinstance(like, Complex):
        return as_complex(x, like.re.dtype)
    return cast(x.re if isinstance(x, Complex) else x, like.dtype)


def is_complex(value: Any) -> bool:
    """Whether an argument, or one of a list, is complex or asks for a complex result."""
    if isinstance(value, list | tuple):
        return any(is_complex(item) for item in value)
    if isinstance(value, types.dtype):
        return value.is_complex
    return isinstance(value, Complex | complex)


def _deciding(x: Operand | Complex | complex) -> Operand:
    if isinstance(x, Complex):
        return Lifted(x.re, float) if x.is_number else x.re
    return x.real if isinstance(x, complex) else x
