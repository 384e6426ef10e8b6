"""Rules of real numbers for both parts of complex ones, where that is all there is to it."""

from collections.abc import Callable, Sequence
from typing import Any

from torch_tiny import scalar_types as types
from torch_tiny.lower.complex_value import PARTS, Complex, as_complex, part_dtype
from torch_tiny.lower.promote import Lifted, Operand, as_uop, cast
from torch_tiny.lower.shapes import DTYPES
from torch_tiny.uops import DType, UOp, dtypes


def by_parts(rule: Callable[..., Any], *values: int) -> Callable[..., Any]:
    """`values`: the arguments that may be real, and have an imaginary part of 0 then."""

    def apply(*args: Any) -> Any:
        part = dtype_of_parts(args)
        given = [as_complex(a, part) if i in values else a for i, a in enumerate(args)]
        re, im = (rule(*picked_parts(given, which)) for which in ("re", "im"))
        if isinstance(re, UOp):
            return Complex(re, im)
        return tuple(None if a is None else Complex(a, b) for a, b in zip(re, im, strict=True))

    return apply


def with_number(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The number is argument 3."""
    return or_real(rule, by_parts(rule, 3))


def or_real(real: Callable[..., Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """`whole` is of complex tensors; a real one takes complex numbers that are real."""

    def apply(x: UOp | Complex, *args: Any) -> Any:
        if isinstance(x, Complex):
            return whole(x, *args)
        return real(x, *(number_for_real(given, x.dtype) for given in args))

    return apply


def number_for_real(given: Any, dtype: DType) -> Any:
    """What a tensor of a real type takes for a number; where it cannot, the call has raised."""
    if not isinstance(given, Complex):
        return given
    return Lifted(real_of(given, dtype if dtype == dtypes.bool else given.re.dtype), float)


def real_of(x: Operand | Complex, dtype: DType) -> UOp:
    """What is left of it in a type that is not complex: whether it is 0, or its real part."""
    if not isinstance(x, Complex):
        return as_uop(x, dtype)
    return x.re.ne(0) | x.im.ne(0) if dtype == dtypes.bool else cast(x.re, dtype)


def dtype_of_parts(args: Sequence[Any]) -> DType:
    """The dtype of the parts: what is asked for, or that of the tensors."""
    for arg in args:
        if isinstance(arg, types.dtype):
            return DTYPES[PARTS.get(arg, arg)]
    tensors = [x for a in args for x in (a if isinstance(a, list | tuple) else (a,))]
    return part_dtype(*(x for x in tensors if isinstance(x, UOp | Complex)))


def picked_parts(value: Any, which: str) -> Any:
    """Arguments with "re" or "im" of what is complex, and the type of parts for complex ones."""
    if isinstance(value, list | tuple):
        return [picked_parts(item, which) for item in value]
    if isinstance(value, Complex):
        return getattr(value, which)
    if isinstance(value, types.dtype):
        return PARTS.get(value, value)
    return value
