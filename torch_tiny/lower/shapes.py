"""Small UOp helpers that the tables share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_tiny import scalar_types as types
from torch_tiny.lower.promote import Lifted, NoLowering, Number, as_uop, is_float, math_dtype
from torch_tiny.uops import DType, UOp, dtypes
from torch_tiny.views import cut, int_shape

Shape = tuple[int, ...]

_NAMES = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
DTYPES: dict[types.dtype, DType] = {
    types.bool_: dtypes.bool,
    **{getattr(types, name): getattr(dtypes, name) for name in _NAMES},
}


def to_dtype(dtype: types.dtype | DType | None, default: DType) -> DType:
    if dtype is None:
        return default
    if isinstance(dtype, DType):
        return dtype
    if dtype not in DTYPES:
        raise NoLowering(f"{dtype} is not a dtype of ours")
    return DTYPES[dtype]


def full(shape: Sequence[int], value: Number, dtype: DType) -> UOp:
    return as_uop(value, dtype).reshape((1,) * len(shape)).expand(tuple(shape))


def full_like(x: UOp, value: Number, dtype: DType | None = None) -> UOp:
    return full(int_shape(x), value, dtype or x.dtype)


def arange(n: int, dtype: DType = dtypes.int32) -> UOp:
    return UOp.arange(n, dtype=dtype) if n else full((0,), 0, dtype)


def along(values: UOp, dim: int, ndim: int) -> UOp:
    """A 1-d value laid along one dimension of `ndim`, to be broadcast."""
    return values.reshape(tuple(-1 if d == dim else 1 for d in range(ndim)))


def positions(shape: Shape, dim: int) -> UOp:
    """The index along one dimension, to be broadcast to `shape`."""
    return (
        along(arange(shape[dim]), dim, len(shape)) if shape[dim] else full(shape, 0, dtypes.int32)
    )


def wrap_dim(dim: int, ndim: int) -> int:
    return dim % max(ndim, 1)


def wrap_dims(dims: Sequence[int] | int | None, ndim: int) -> tuple[int, ...]:
    """Dimensions to reduce; none given means all of them."""
    if isinstance(dims, int):
        dims = [dims]
    if dims is None or len(dims) == 0:
        return tuple(range(ndim))
    return tuple(sorted({wrap_dim(d, ndim) for d in dims})) if ndim else ()


def kept_shape(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def count(x: UOp, dims: tuple[int, ...]) -> int:
    shape = int_shape(x)
    return math.prod(shape[d] for d in dims)


def pad(x: UOp, widths: Sequence[tuple[int, int]], value: Number = 0) -> UOp:
    """Constant padding; a negative width cuts."""
    shape = int_shape(x)
    x = x.shrink(
        tuple((max(0, -lo), n + min(0, hi)) for n, (lo, hi) in zip(shape, widths, strict=True))
    )
    grown = [(max(0, lo), max(0, hi)) for lo, hi in widths]
    if not any(lo or hi for lo, hi in grown):
        return x
    padded = x.pad(tuple(grown))
    if not isinstance(value, Lifted) and value == 0 and math.copysign(1, value) > 0:
        return padded
    inside = full_like(x, True, dtypes.bool).pad(tuple(grown))
    return inside.where(padded, as_uop(value, x.dtype))


def widths(ndim: int, dim: int, before: int, after: int) -> list[tuple[int, int]]:
    return [(before, after) if d == dim else (0, 0) for d in range(ndim)]


def dilate(x: UOp, dim: int, step: int, value: Number = 0) -> UOp:
    """`step - 1` fill values between the elements of a dimension."""
    if step == 1:
        return x
    n = int_shape(x)[dim]
    spread = pad(x.unsqueeze(dim + 1), widths(x.ndim + 1, dim + 1, 0, step - 1), value)
    return cut(spread.flatten(dim, dim + 1), dim, 0, max(0, (n - 1) * step + 1))


def broadcast(*uops: UOp) -> list[UOp]:
    shape = np.broadcast_shapes(*(int_shape(x) for x in uops))
    return [x.expand(tuple(shape)) for x in uops]


def total(x: UOp, dims: tuple[int, ...], keepdim: bool = False) -> UOp:
    """A sum, in the accumulator's dtype: float32 for halves, the dtype itself for all others."""
    summed = subtotal(x, dims, keepdim)
    # There is no loop over one element, but a sum begins with 0.0: it is never -0.0.
    return summed + 0.0 if is_float(x.dtype) and count(x, dims) == 1 else summed


def subtotal(x: UOp, dims: tuple[int, ...], keepdim: bool = False) -> UOp:
    """The same for sums that are summed again: of one element it is that element."""
    return x.cast(math_dtype(x.dtype)).sum(dims, keepdim=keepdim, dtype=math_dtype(x.dtype))


def lowest(dtype: DType) -> bool | int | float:
    if is_float(dtype):
        return -math.inf
    return False if dtype == dtypes.bool else int(dtype.min)


def to_math(value: Any) -> Any:
    if isinstance(value, UOp) and is_float(value.dtype):
        return value.cast(math_dtype(value.dtype))
    return value
