"""Upsampling and downsampling with a filter as wide as the steps: products with its weights."""

import functools
from collections.abc import Callable, Sequence

from torch_tiny.lower.arithmetic import absolute, maximum
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.pool import Scale, input_step, keys
from torch_tiny.lower.promote import cast
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import arange, full, full_like, to_math, total
from torch_tiny.uops import DType, UOp, call
from torch_tiny.views import int_shape

Filter = Callable[[UOp], UOp]


def _weights(size: int, out: int, corners: bool, scale: Scale, dtype: DType, reach: float,
             shape: Filter) -> UOp:  # fmt: skip
    """(out, size): how much each input counts for each output; a row sums to 1."""
    if corners:
        step = full((), (size - 1) / (out - 1) if out > 1 else 0.0, dtype)
    else:
        step = input_step(size, out, scale, dtype)
    wide = maximum(step, full((), 1.0, dtype))
    center = (arange(out).cast(dtype) + 0.5) * step
    first = call("trunc", center - wide * reach + 0.5)
    first = maximum(first, full_like(first, 0.0))
    last = call("trunc", center + wide * reach + 0.5)
    here = arange(size).cast(dtype)
    inside = (here >= first.unsqueeze(1)) & (here < last.unsqueeze(1))
    weight = shape((here - center.unsqueeze(1) + 0.5) / wide)
    weight = inside.where(weight, full((), 0, dtype))
    return weight / total(weight, (1,), True)


def _both(inputs: Sequence[int], sizes: Sequence[int], corners: bool, scales: Sequence[Scale],
          dtype: DType, reach: float, shape: Filter) -> list[UOp]:  # fmt: skip
    """For the rows and for the columns."""
    given = zip(inputs, sizes, scales, strict=True)
    return [_weights(size, out, corners, scale, dtype, reach, shape) for size, out, scale in given]


def _triangle(x: UOp) -> UOp:
    return maximum(1.0 - absolute(x), full_like(x, 0.0))


def _keys(x: UOp) -> UOp:
    """Keys' kernel with a = -0.5."""
    d = absolute(x)
    return (d < 2.0).where(keys(d, -0.5), full_like(d, 0.0))


def _forward(x: UOp, sizes: Sequence[int], corners: bool, *scales: Scale, reach: float,
             shape: Filter) -> UOp:  # fmt: skip
    wide = to_math(x)
    rows, columns = _both(int_shape(x)[-2:], sizes, corners, scales, wide.dtype, reach, shape)
    return cast(matmul(rows, matmul(wide, columns.transpose(0, 1))), x.dtype)


def _backward(grad: UOp, sizes: Sequence[int], inputs: Sequence[int], corners: bool,
              *scales: Scale, reach: float, shape: Filter) -> UOp:  # fmt: skip
    wide = to_math(grad)
    rows, columns = _both(inputs[2:], sizes, corners, scales, wide.dtype, reach, shape)
    return cast(matmul(rows.transpose(0, 1), matmul(wide, columns)), grad.dtype)


TABLE: Table = {
    f"_upsample_{name}2d_aa{suffix}": functools.partial(rule, reach=reach, shape=shape)
    for name, reach, shape in (("bilinear", 1.0, _triangle), ("bicubic", 2.0, _keys))
    for suffix, rule in (("", _forward), ("_backward", _backward))
}
