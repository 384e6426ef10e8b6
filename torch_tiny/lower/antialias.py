"""Upsampling and downsampling with a filter as wide as the steps: products with its weights."""

from collections.abc import Callable, Sequence

from torch_tiny.lower.arithmetic import absolute, maximum
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.pool import Scale, input_step
from torch_tiny.lower.promote import cast
from torch_tiny.lower.rule import Function, heavy, rules
from torch_tiny.lower.shapes import arange, full, full_like, to_math, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape

Filter = Callable[[UOp], UOp]


def _weights(size: int, out: int, corners: bool, scale: Scale, reach: float,
             shape: Filter) -> UOp:  # fmt: skip
    """(out, size): how much each input counts for each output; a row sums to 1."""
    if corners:
        step = full((), (size - 1) / (out - 1) if out > 1 else 0.0, dtypes.float32)
    else:
        step = input_step(size, out, scale)
    wide = maximum(step, full((), 1.0, dtypes.float32))
    center = (arange(out).cast(dtypes.float32) + 0.5) * step
    first = call("trunc", center - wide * reach + 0.5)
    first = maximum(first, full_like(first, 0.0))
    last = call("trunc", center + wide * reach + 0.5)
    here = arange(size).cast(dtypes.float32)
    inside = (here >= first.unsqueeze(1)) & (here < last.unsqueeze(1))
    weight = shape((here - center.unsqueeze(1) + 0.5) / wide)
    weight = inside.where(weight, full((), 0, dtypes.float32))
    return weight / total(weight, (1,), True)


def _triangle(x: UOp) -> UOp:
    return maximum(1.0 - absolute(x), full_like(x, 0.0))


def _keys(x: UOp) -> UOp:
    """Keys' kernel with a = -0.5."""
    d = absolute(x)
    near = (d * 1.5 - 2.5) * d * d + 1.0
    far = ((d * -0.5 + 2.5) * d - 4.0) * d + 2.0
    return (d < 1.0).where(near, (d < 2.0).where(far, full_like(d, 0.0)))


def _forward(reach: float, shape: Filter) -> Function:
    def rule(x: UOp, sizes: Sequence[int], corners: bool, *scales: Scale) -> UOp:
        high, wide = int_shape(x)[-2:]
        rows = _weights(high, sizes[0], corners, scales[0], reach, shape)
        columns = _weights(wide, sizes[1], corners, scales[1], reach, shape)
        across = matmul(to_math(x), columns.transpose(0, 1).cast(to_math(x).dtype))
        return cast(matmul(rows.cast(across.dtype), across), x.dtype)

    return rule


def _backward(reach: float, shape: Filter) -> Function:
    def rule(grad: UOp, sizes: Sequence[int], inputs: Sequence[int], corners: bool,
             *scales: Scale) -> UOp:  # fmt: skip
        rows = _weights(inputs[2], sizes[0], corners, scales[0], reach, shape)
        columns = _weights(inputs[3], sizes[1], corners, scales[1], reach, shape)
        across = matmul(to_math(grad), columns.cast(to_math(grad).dtype))
        return cast(matmul(rows.transpose(0, 1).cast(across.dtype), across), grad.dtype)

    return rule


_FUNCTIONS: dict[str, Function] = {
    "_upsample_bilinear2d_aa": _forward(1.0, _triangle),
    "_upsample_bilinear2d_aa_backward": _backward(1.0, _triangle),
    "_upsample_bicubic2d_aa": _forward(2.0, _keys),
    "_upsample_bicubic2d_aa_backward": _backward(2.0, _keys),
}

TABLE = rules(_FUNCTIONS, heavy)
