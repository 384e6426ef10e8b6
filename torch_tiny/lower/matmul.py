"""Matrix products and convolutions, for devices where everything has to be lowered."""

from collections.abc import Callable, Sequence
from functools import partial, reduce

from torch_tiny.lower.movement import flip, windows_of
from torch_tiny.lower.promote import HALVES, Lifted, Number, as_uop, cast
from torch_tiny.lower.reduce import amax
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import dilate, pad, subtotal, to_math, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape


def matmul(a: UOp, b: UOp) -> UOp:
    """(..., n, k) by (..., k, m), not rounded."""
    left, right = to_math(a).unsqueeze(-2), to_math(b).transpose(-1, -2).unsqueeze(-3)
    if a.dtype == dtypes.bool:
        return amax(left & right, (left.ndim - 1,))
    # One product alone is what BLAS makes of a matrix with one column.
    is_blas = a.ndim == b.ndim == 2 and a.dtype not in HALVES
    return (subtotal if is_blas else total)(left * right, (max(left.ndim, right.ndim) - 1,))


def rounded(a: UOp, b: UOp) -> UOp:
    return cast(matmul(a, b), a.dtype)


def by_vector(a: UOp, v: UOp) -> UOp:
    return cast(total(to_math(a) * to_math(v), (1,)), a.dtype)


def _plus(
    product: Callable[[UOp, UOp], UOp], x: UOp, a: UOp, b: UOp, beta: Number, alpha: Number
) -> UOp:
    """beta*x + alpha*product(a, b); a beta of 0 ignores x, NaN and all."""
    found = product(a, b)
    scaled = found * as_uop(alpha, found.dtype)
    if isinstance(beta, Lifted) or beta != 0:
        scaled = to_math(x) * as_uop(beta, found.dtype) + scaled
    return cast(scaled, a.dtype)


def _summed_products(a: UOp, b: UOp) -> UOp:
    """Of all matrices of a batch: a product of matrices side by side."""
    batch, n, k = int_shape(a)
    wide = a.permute((1, 0, 2)).reshape((n, batch * k))
    return matmul(wide, b.reshape((batch * k, int_shape(b)[2])))


def dot(a: UOp, b: UOp) -> UOp:
    return cast(total(to_math(a) * to_math(b), (0,)), a.dtype)


def _trilinear(
    a: UOp, b: UOp, c: UOp, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    over: Sequence[int], _unroll: int,
) -> UOp:  # fmt: skip
    first, second, third = (
        reduce(lambda wide, dim: wide.unsqueeze(dim), dims, to_math(x))
        for x, dims in ((a, expand1), (b, expand2), (c, expand3))
    )
    return cast(total(first * second * third, tuple(over)), a.dtype)


# --- convolutions in any number of dimensions ---


def _correlate(x: UOp, weight: UOp, stride: Sequence[int], padding: Sequence[int],
               dilation: Sequence[int], groups: int) -> UOp:  # fmt: skip
    out_channels, channels, *kernel = int_shape(weight)
    k = len(kernel)
    windows = windows_of(to_math(x), kernel, stride, padding, dilation)
    n, _, *grid = int_shape(windows)[: 2 + k]
    grouped = windows.reshape((n, groups, 1, channels, *grid, *kernel))
    grouped = grouped.permute((0, 1, 2, *range(4, 4 + k), 3, *range(4 + k, 4 + 2 * k)))
    per_group = out_channels // groups
    filters = to_math(weight).reshape((groups, per_group, *(1,) * k, channels, *kernel))
    # One sum per channel and a sum of those: long sums in one go lose digits.
    per_channel = subtotal(grouped * filters, tuple(range(4 + k, 4 + 2 * k)))
    return total(per_channel, (3 + k,)).reshape((n, out_channels, *grid))


def _correlate_adjoint(g: UOp, weight: UOp, sizes: Sequence[int], stride: Sequence[int],
                       padding: Sequence[int], dilation: Sequence[int],
                       groups: int) -> UOp:  # fmt: skip
    """The gradient of the input of `_correlate`, which had these sizes."""
    out_channels, channels, *kernel = int_shape(weight)
    k = len(kernel)
    g = to_math(g)
    around = [(0, 0), (0, 0)]
    for i in range(k):
        g = dilate(g, 2 + i, stride[i])
        reach = dilation[i] * (kernel[i] - 1)
        before = reach - padding[i]
        around.append((before, sizes[i] + reach - int_shape(g)[2 + i] - before))
    flipped = flip(to_math(weight), range(2, 2 + k))
    flipped = flipped.reshape((groups, out_channels // groups, channels, *kernel)).transpose(1, 2)
    flipped = flipped.reshape((groups * channels, out_channels // groups, *kernel))
    return _correlate(pad(g, around), flipped, [1] * k, [0] * k, dilation, groups)


def _weight_gradient(x: UOp, g: UOp, weight: UOp, stride: Sequence[int], padding: Sequence[int],
                     dilation: Sequence[int], groups: int) -> UOp:  # fmt: skip
    out_channels, channels, *kernel = int_shape(weight)
    k = len(kernel)
    windows = windows_of(to_math(x), kernel, stride, padding, dilation)
    n, grid = int_shape(windows)[0], int_shape(g)[2:]
    windows = windows.shrink(tuple((0, s) for s in (n, int_shape(x)[1], *grid, *kernel)))
    grouped = windows.reshape((n, groups, 1, channels, *grid, *kernel))
    slopes = to_math(g).reshape((n, groups, out_channels // groups, 1, *grid, *(1,) * k))
    per_sample = subtotal(grouped * slopes, tuple(range(4, 4 + k)))
    return total(per_sample, (0,)).reshape(int_shape(weight))


def _convolution(x: UOp, weight: UOp, bias: UOp | None, stride: Sequence[int],
                 padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                 output_padding: Sequence[int], groups: int) -> UOp:  # fmt: skip
    k = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        list(v) * k if len(v) == 1 else v for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        sizes = [
            (n - 1) * s - 2 * p + d * (m - 1) + o + 1
            for n, s, p, d, m, o in zip(
                int_shape(x)[2:], stride, padding, dilation, int_shape(weight)[2:],
                output_padding, strict=True,
            )
        ]  # fmt: skip
        out = _correlate_adjoint(x, weight, sizes, stride, padding, dilation, groups)
    else:
        out = _correlate(x, weight, stride, padding, dilation, groups)
    if bias is not None:
        out = out + to_math(bias).reshape((-1, *(1,) * k))
    return cast(out, x.dtype)


def _convolution_backward(
    grad: UOp, x: UOp, weight: UOp, _bias: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    _output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> Results:  # fmt: skip
    k = weight.ndim - 2
    stride, padding, dilation = (
        list(v) * k if len(v) == 1 else v for v in (stride, padding, dilation)
    )
    how = (stride, padding, dilation, groups)
    if transposed:
        inward = _correlate(grad, weight, *how).shrink(tuple((0, n) for n in int_shape(x)))
        outer, inner = grad, x
    else:
        inward = _correlate_adjoint(grad, weight, int_shape(x)[2:], *how)
        outer, inner = x, grad
    return (
        cast(inward, x.dtype) if mask[0] else None,
        cast(_weight_gradient(outer, inner, weight, *how), weight.dtype) if mask[1] else None,
        cast(total(grad, (0, *range(2, 2 + k))), grad.dtype) if mask[2] else None,
    )


TABLE: Table = {
    **dict.fromkeys(("mm", "bmm"), rounded),
    "mv": by_vector,
    **dict.fromkeys(("dot", "vdot"), dot),
    **dict.fromkeys(("addmm", "baddbmm"), partial(_plus, matmul)),
    "addbmm": partial(_plus, _summed_products),
    "addmv": partial(_plus, lambda a, v: total(to_math(a) * to_math(v), (1,))),
    "addr": partial(_plus, lambda a, b: to_math(a).unsqueeze(1) * to_math(b)),
    "_trilinear": _trilinear,
    **dict.fromkeys(("convolution", "convolution_overrideable"), _convolution),
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": lambda g, x, w, *rest: _convolution_backward(
        g, x, w, None, *rest
    ),
}
