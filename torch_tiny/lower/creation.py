"""Tensors made from numbers."""

import math
from collections.abc import Sequence
from typing import Any

from torch_tiny.lower.promote import (
    Lifted,
    Number,
    Operand,
    as_uop,
    cast,
    default_dtype,
    is_float,
    known,
    math_dtype,
    result_dtype,
)
from torch_tiny.lower.rule import Function
from torch_tiny.lower.shapes import arange, full, to_dtype
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import int_shape


def _arange(*bounds: Number, dtype: DType | None) -> UOp:
    start, end, step = (known(v, "a bound of arange") for v in bounds)
    floats = any(isinstance(v, float) for v in (start, end, step))
    result = to_dtype(dtype, default_dtype() if floats else dtypes.int64)
    n = max(0, math.ceil((end - start) / step))
    return _counted(start, step, n, result)


def _counted(start: Number, step: Number, n: int, result: DType) -> UOp:
    """n numbers from `start` on."""
    floats = any(isinstance(v, float | Lifted) for v in (start, step))
    wide = dtypes.float64 if is_float(result) else dtypes.int64
    if is_float(result) and not floats and n < 1 << 24:
        first, by = known(start, "start"), known(step, "step")
        if max(abs(first), abs(first + by * n)) < 1 << 24:  # float32 has all of the numbers
            wide = dtypes.float32
    values = arange(n).cast(wide) * as_uop(step, wide) + as_uop(start, wide)
    return cast(values, result)


def linspace(start: Operand, end: Operand, steps: int, dtype: DType | None) -> UOp:
    result = to_dtype(dtype, default_dtype())
    wide = math_dtype(result) if is_float(result) else dtypes.float32
    first, last = (as_uop(v, wide) for v in (start, end))
    if steps <= 1:
        return cast(first.reshape((1,)).expand((steps,)), result)
    at, step = arange(steps), (last - first) / float(steps - 1)
    up = first + step * at.cast(wide)
    down = last - step * (steps - 1 - at).cast(wide)
    return cast((at < steps // 2).where(up, down), result)


def _logspace(start: Operand, end: Operand, steps: int, base: Number, dtype: DType | None) -> UOp:
    result = to_dtype(dtype, default_dtype())
    # The CPU computes in double for floats.
    wide = dtypes.float64 if is_float(result) else dtypes.float32
    powers = linspace(start, end, steps, wide)
    return cast(call("pow", as_uop(base, wide).expand(int_shape(powers)), powers), result)


def _full(size: Sequence[int], value: Number, dtype: DType | None, *_: Any) -> UOp:
    return full(size, value, to_dtype(dtype, result_dtype(value)))


def _new_full(x: UOp, size: Sequence[int], value: Number, dtype: DType | None, *_: Any) -> UOp:
    return full(size, value, to_dtype(dtype, x.dtype))


def _eye(n: int, m: int, dtype: DType | None) -> UOp:
    return cast(arange(n).unsqueeze(1).eq(arange(m)) if n and m else
                full((n, m), False, dtypes.bool), to_dtype(dtype, default_dtype()))  # fmt: skip


TABLE: dict[str, Function] = {
    "arange": lambda end, dtype, *_: _arange(0, end, 1, dtype=dtype),
    "arange.start": lambda start, end, dtype, *_: _arange(start, end, 1, dtype=dtype),
    # Whatever the bounds are, the memory says how many numbers there are.
    "arange.out": lambda _, out: _counted(0, 1, int_shape(out)[0], out.dtype),
    "arange.start_out": lambda start, _, step, out: _counted(
        start, step, int_shape(out)[0], out.dtype
    ),
    "arange.start_step": lambda start, end, step, dtype, *_: _arange(start, end, step, dtype=dtype),
    **dict.fromkeys(
        ("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"),
        lambda start, end, steps, dtype, *_: linspace(start, end, steps, dtype),
    ),
    **dict.fromkeys(
        ("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor"),
        lambda start, end, steps, base, dtype, *_: _logspace(start, end, steps, base, dtype),
    ),
    "eye": lambda n, dtype, *_: _eye(n, n, dtype),
    "eye.m": lambda n, m, dtype, *_: _eye(n, m, dtype),
    "full": _full,
    **dict.fromkeys(("zeros", "_efficientzerotensor"), lambda size, *rest: _full(size, 0.0, *rest)),
    "ones": lambda size, *rest: _full(size, 1.0, *rest),
    "scalar_tensor": lambda value, dtype, *_: full((), value, to_dtype(dtype, default_dtype())),
    "full_like": lambda x, *rest: _new_full(x, int_shape(x), *rest),
    "zeros_like": lambda x, *rest: _new_full(x, int_shape(x), 0, *rest),
    "ones_like": lambda x, *rest: _new_full(x, int_shape(x), 1, *rest),
    "new_full": _new_full,
    "new_zeros": lambda x, size, *rest: _new_full(x, size, 0, *rest),
    "new_ones": lambda x, size, *rest: _new_full(x, size, 1, *rest),
}
