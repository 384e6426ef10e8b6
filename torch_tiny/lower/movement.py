"""Views as values, padding, joining, and their adjoints."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch_tiny.lower.complex_parts import by_parts
from torch_tiny.lower.index import place, take
from torch_tiny.lower.promote import NoLowering, Number, cast, join, known
from torch_tiny.lower.reduce import sums
from torch_tiny.lower.rule import Function, Rule, Table, heavy, rules
from torch_tiny.lower.shapes import (
    arange,
    dilate,
    full,
    full_like,
    pad,
    to_dtype,
    to_math,
    widths,
    wrap_dim,
    wrap_dims,
)
from torch_tiny.uops import DType, UOp, dtypes
from torch_tiny.views import ViewSpec, cut, int_shape, read, write


def concatenate(tensors: Sequence[UOp], dim: int = 0) -> UOp:
    dtype = functools.reduce(join, (t.dtype for t in tensors))
    # An empty 1-d tensor may stand anywhere.
    parts = [cast(t, dtype) for t in tensors if int_shape(t) != (0,)] or [cast(tensors[0], dtype)]
    dim = wrap_dim(dim, parts[0].ndim)
    size = sum(int_shape(t)[dim] for t in parts)
    start, result = 0, None
    for part in parts:
        n = int_shape(part)[dim]
        around = widths(part.ndim, dim, start, size - start - n)
        placed = pad(part, around)
        if result is None:
            result = placed
        elif n:
            result = pad(full_like(part, True, dtypes.bool), around).where(placed, result)
        start += n
    assert result is not None
    return result


def stack(tensors: Sequence[UOp], dim: int = 0) -> UOp:
    dim = wrap_dim(dim, tensors[0].ndim + 1)
    return concatenate([t.unsqueeze(dim) for t in tensors], dim)


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    start, stop, step = slice(start, end, step).indices(size)
    return start, max(start, stop), step


def sliced(x: UOp, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> UOp:  # fmt: skip
    dim, shape = wrap_dim(dim, x.ndim), int_shape(x)
    start, stop, step = slice_bounds(shape[dim], start, end, step)
    part = cut(x, dim, start, stop)
    if step == 1:
        return part
    rows = -(-(stop - start) // step)
    part = pad(part, widths(x.ndim, dim, 0, rows * step - (stop - start)))
    return cut(part.unflatten(dim, (rows, step)), dim + 1, 0, 1).squeeze(dim + 1)


def _spread_slice(x: UOp, size: int, dim: int, start: int | None, end: int | None,
                  step: int) -> UOp:  # fmt: skip
    """The adjoint of `sliced`: values at their places, zeros elsewhere."""
    start, _, step = slice_bounds(size, start, end, step)
    wide = dilate(x, dim, step)
    return pad(wide, widths(x.ndim, dim, start, size - start - int_shape(wide)[dim]))


def _slice_scatter(x: UOp, source: UOp, dim: int, start: int | None, end: int | None,
                   step: int) -> UOp:  # fmt: skip
    dim = wrap_dim(dim, x.ndim)
    size = int_shape(x)[dim]
    source = cast(source, x.dtype).expand(sliced(x, dim, start, end, step).shape)
    if 0 in source.shape:
        return x
    put = _spread_slice(source, size, dim, start, end, step)
    at = _spread_slice(full_like(source, True, dtypes.bool), size, dim, start, end, step)
    return at.where(put, x)


def _slice_backward(grad: UOp, sizes: Sequence[int], dim: int, start: int, end: int,
                    step: int) -> UOp:  # fmt: skip
    dim = wrap_dim(dim, len(sizes))
    if 0 in grad.shape:
        return full(sizes, 0, grad.dtype)
    return _spread_slice(grad, sizes[dim], dim, start, end, step)


def select(x: UOp, dim: int, index: int) -> UOp:
    dim = wrap_dim(dim, x.ndim)
    index = known(index, "index") % max(1, int_shape(x)[dim])
    return cut(x, dim, index, index + 1).squeeze(dim)


def _select_scatter(x: UOp, source: UOp, dim: int, index: int) -> UOp:
    dim = wrap_dim(dim, x.ndim)
    index %= int_shape(x)[dim]
    return _slice_scatter(x, source.unsqueeze(dim), dim, index, index + 1, 1)


def _diagonal_spec(shape: Sequence[int], offset: int, dim1: int, dim2: int) -> ViewSpec:
    dim1, dim2 = wrap_dim(dim1, len(shape)), wrap_dim(dim2, len(shape))
    whole = ViewSpec.contiguous(tuple(shape))
    rows, columns = shape[dim1], shape[dim2]
    n = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset * whole.strides[dim2] if offset >= 0 else -offset * whole.strides[dim1]
    kept = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    return ViewSpec(
        (*(shape[d] for d in kept), n),
        (*(whole.strides[d] for d in kept), whole.strides[dim1] + whole.strides[dim2]),
        start if n else 0,
    )


def diagonal(x: UOp, offset: int = 0, dim1: int = 0, dim2: int = 1) -> UOp:
    return read(x.reshape((-1,)), _diagonal_spec(int_shape(x), offset, dim1, dim2))


def _diagonal_scatter(x: UOp, source: UOp, offset: int, dim1: int, dim2: int) -> UOp:
    spec = _diagonal_spec(int_shape(x), offset, dim1, dim2)
    return write(x.reshape((-1,)), spec, source).reshape(int_shape(x))


def _diag_embed(x: UOp, offset: int, dim1: int, dim2: int) -> UOp:
    n = int_shape(x)[-1] + abs(offset)
    dim1, dim2 = wrap_dim(dim1, x.ndim + 1), wrap_dim(dim2, x.ndim + 1)
    sizes = list(int_shape(x)[:-1])
    for d in sorted((dim1, dim2)):
        sizes.insert(d, n)
    return _diagonal_scatter(full(sizes, 0, x.dtype), x, offset, dim1, dim2)


def _as_strided_scatter(
    x: UOp, source: UOp, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> UOp:
    spec = ViewSpec(tuple(size), tuple(stride), offset or 0)
    if spec.overlaps():
        raise NoLowering("a write to memory that elements share")
    return write(x.reshape((-1,)), spec, source).reshape(int_shape(x))


def _squeeze(x: UOp, dims: Sequence[int] | int | None = None) -> UOp:
    over = wrap_dims(dims, x.ndim) if dims is not None else tuple(range(x.ndim))
    return x.reshape(tuple(n for d, n in enumerate(int_shape(x)) if n != 1 or d not in over))


def _transpose(x: UOp, a: int, b: int) -> UOp:
    a, b = wrap_dim(a, x.ndim), wrap_dim(b, x.ndim)
    return x.transpose(a, b) if x.ndim else x


def _split(x: UOp, size: int, dim: int = 0) -> tuple[UOp, ...]:
    n = int_shape(x)[wrap_dim(dim, x.ndim)]
    return _split_sizes(x, [min(size, n - i) for i in range(0, n, size)] if n else [n], dim)


def _split_sizes(x: UOp, sizes: Sequence[int], dim: int = 0) -> tuple[UOp, ...]:
    parts: tuple[UOp, ...] = x.split(list(sizes), dim)
    return parts


def unfold(x: UOp, dim: int, size: int, step: int) -> UOp:
    if x.ndim == 0:
        return x.expand((size,)) if size else full((0,), 0, x.dtype)
    dim, shape = wrap_dim(dim, x.ndim), int_shape(x)
    rows = (shape[dim] - size) // step + 1
    whole = ViewSpec.contiguous(shape)
    spec = ViewSpec(
        (*shape[:dim], rows, *shape[dim + 1 :], size),
        (*whole.strides[:dim], whole.strides[dim] * step, *whole.strides[dim + 1 :],
         whole.strides[dim]),
    )  # fmt: skip
    return read(x.reshape((-1,)), spec)


def _unfold_backward(grad: UOp, sizes: Sequence[int], dim: int, size: int, step: int) -> UOp:
    if not sizes:
        return sums(grad) if size else full((), 0, grad.dtype)
    dim = wrap_dim(dim, len(sizes))
    index = (arange(int_shape(grad)[dim]).unsqueeze(1) * step + arange(size)).reshape((-1,))
    moved = grad.permute((*range(dim + 1), grad.ndim - 1, *range(dim + 1, grad.ndim - 1)))
    return place(moved.flatten(dim, dim + 1), dim, index, sizes[dim])


def flip(x: UOp, dims: Sequence[int]) -> UOp:
    return x.flip(tuple(wrap_dim(d, x.ndim) for d in dims)) if x.ndim and dims else x


def _roll(x: UOp, shifts: Sequence[int], dims: Sequence[int]) -> UOp:
    if 0 in x.shape or x.ndim == 0:
        return x
    if not dims:
        return _roll(x.reshape((-1,)), shifts, [0]).reshape(int_shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        d = wrap_dim(dim, x.ndim)
        at = -shift % int_shape(x)[d]
        if at:
            x = concatenate([cut(x, d, at, int_shape(x)[d]), cut(x, d, 0, at)], d)
    return x


def _repeat(x: UOp, repeats: Sequence[int]) -> UOp:
    shape = (*(1,) * (len(repeats) - x.ndim), *int_shape(x))
    if 0 in repeats:
        return full([n * r for n, r in zip(shape, repeats, strict=True)], 0, x.dtype)
    return x.repeat(tuple(repeats)) if repeats else x


# --- padding ---


def _constant_pad(x: UOp, amounts: Sequence[int], value: Number) -> UOp:
    around = [(0, 0)] * x.ndim
    for i in range(len(amounts) // 2):
        around[x.ndim - 1 - i] = (amounts[2 * i], amounts[2 * i + 1])
    return pad(x, around, value)


def _source_positions(size: int, before: int, after: int, reflect: bool) -> UOp:
    """Where in the unpadded dimension each padded position comes from."""
    at = arange(size + before + after) - before
    if not reflect:
        return (at < 0).where(full_like(at, 0), (at >= size).where(full_like(at, size - 1), at))
    at = (at < 0).where(-at, at)
    return (at >= size).where(2 * (size - 1) - at, at)


def _edges(x: UOp, amounts: Sequence[int], reflect: bool) -> Iterator[tuple[int, UOp, int]]:
    """The dimensions that are padded: their sources, and sizes without the padding."""
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            dim = x.ndim - 1 - i
            size = int_shape(x)[dim]
            yield dim, _source_positions(size, before, after, reflect), size


def _edge_pad(x: UOp, amounts: Sequence[int], reflect: bool) -> UOp:
    for dim, source, _ in _edges(x, amounts, reflect):
        x = take(x, dim, source)
    return x


def _edge_pad_backward(grad: UOp, x: UOp, amounts: Sequence[int], reflect: bool) -> UOp:
    grad = to_math(grad)
    for dim, source, size in _edges(x, amounts, reflect):
        grad = place(grad, dim, source, size)
    return cast(grad, x.dtype)


def _edge_pads(rule: Function, suffix: str = "") -> dict[str, Function]:
    return {
        f"{name}_pad{n}d{suffix}": functools.partial(rule, reflect=reflect)
        for name, reflect in (("reflection", True), ("replication", False))
        for n in (1, 2, 3)
    }


# --- windows: unfold in two dimensions ---


def windows_of(x: UOp, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
               dilation: Sequence[int]) -> UOp:  # fmt: skip
    """(n, channels, *positions, *kernel)"""
    padded = pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    return padded._pool(tuple(kernel), tuple(stride), tuple(dilation))


def _im2col(x: UOp, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
            stride: Sequence[int]) -> UOp:  # fmt: skip
    batched = x if x.ndim == 4 else x.unsqueeze(0)
    n, channels = int_shape(batched)[:2]
    if n == 0:
        return _im2col(
            full((1, *int_shape(x)[1:]), 0, x.dtype), kernel, dilation, padding, stride
        ).shrink(((0, 0), None, None))
    windows = windows_of(batched, kernel, stride, padding, dilation)
    columns = windows.permute((0, 1, 4, 5, 2, 3)).reshape((n, channels * math.prod(kernel), -1))
    return columns if x.ndim == 4 else columns.squeeze(0)


def _col2im(x: UOp, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
            padding: Sequence[int], stride: Sequence[int]) -> UOp:  # fmt: skip
    batched = x if x.ndim == 3 else x.unsqueeze(0)
    if 0 in x.shape:
        return full((0, int_shape(x)[1] // math.prod(kernel), *size), 0, x.dtype)
    grid = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(size, padding, dilation, kernel, stride, strict=True)
    ]
    shape = int_shape(batched)
    values = batched.reshape((shape[0], -1, kernel[0], kernel[1], *grid)).permute(
        (0, 1, 2, 4, 3, 5)
    )
    for i, dim in ((0, 2), (1, 3)):
        index = arange(kernel[i]).unsqueeze(1) * dilation[i] + arange(grid[i]) * stride[i]
        flat = values.flatten(dim, dim + 1)
        placed = place(flat, dim, index.reshape((-1,)), size[i] + 2 * padding[i])
        values = cut(placed, dim, padding[i], padding[i] + size[i])
    return values if x.ndim == 3 else values.squeeze(0)


def _rot90(x: UOp, k: int, dims: Sequence[int]) -> UOp:
    a, b = dims
    if k == 0:
        return x
    if k == 2:
        return flip(x, [a, b])
    return _transpose(flip(x, [b]), a, b) if k == 1 else flip(_transpose(x, a, b), [b])


def _inside(x: UOp, diagonal: int) -> int:
    """The same of those that meet the matrix, or the nearest that does not."""
    rows, columns = int_shape(x)[-2:]
    return max(-rows, min(columns, diagonal))


def _pixel_shuffle(x: UOp, r: int) -> UOp:
    if x.ndim == 3:  # tinygrad's "..." is at least one dimension
        return _pixel_shuffle(x.unsqueeze(0), r).squeeze(0)
    c = int_shape(x)[-3] // (r * r)
    return x.rearrange("... (c a b) h w -> ... c (h a) (w b)", a=r, b=r, c=c)


def _pixel_unshuffle(x: UOp, r: int) -> UOp:
    if x.ndim == 3:
        return _pixel_unshuffle(x.unsqueeze(0), r).squeeze(0)
    h, w = (n // r for n in int_shape(x)[-2:])
    return x.rearrange("... c (h a) (w b) -> ... (c a b) h w", a=r, b=r, h=h, w=w)


def _channel_shuffle(x: UOp, groups: int) -> UOp:
    c = int_shape(x)[1] // groups
    return x.rearrange("n (g c) ... -> n (c g) ...", g=groups, c=c)


def _bitcast(x: UOp, dtype: DType) -> UOp:
    target = to_dtype(dtype, x.dtype)
    if target.itemsize != x.dtype.itemsize or dtypes.bool in (target, x.dtype):
        raise NoLowering("a view in a dtype of another size")
    return x.bitcast(target)


def _reshape(x: UOp, size: Sequence[int], *_: Any) -> UOp:
    if 0 in x.shape:
        return full([0 if n == -1 else n for n in size], 0, x.dtype)
    return x.reshape(tuple(size))


VIEWS: dict[str, Function] = {
    **dict.fromkeys(("view", "_unsafe_view", "_reshape_alias"), _reshape),
    "expand": lambda x, size, _implicit=False: x.expand(tuple(size)),
    "permute": lambda x, dims: x.permute(tuple(wrap_dim(d, x.ndim) for d in dims)),
    "transpose.int": _transpose,
    "t": lambda x: x.permute((1, 0)) if x.ndim == 2 else x,
    **dict.fromkeys(("squeeze", "squeeze.dim"), _squeeze),
    "squeeze.dims": lambda x, dims: _squeeze(x, dims) if dims else x,
    "unsqueeze": lambda x, dim: x.unsqueeze(wrap_dim(dim, x.ndim + 1)),
    "slice.Tensor": sliced,
    "select.int": select,
    "diagonal": diagonal,
    # Of a contiguous tensor; others are views of their storage before they come here.
    "as_strided": lambda x, size, stride, offset: read(
        x.reshape((-1,)), ViewSpec(tuple(size), tuple(stride), offset or 0)
    ),
    "split.Tensor": _split,
    "split_with_sizes": _split_sizes,
    "unbind.int": lambda x, dim=0: tuple(select(x, dim, i) for i in range(x.shape[dim])),
    "unfold": unfold,
}

_LIGHT: dict[str, Function] = {
    **VIEWS,
    **{
        f"{name.partition('.')[0]}_copy{name.removeprefix(name.partition('.')[0])}": rule
        for name, rule in VIEWS.items()
        if not name.startswith("_")
    },
    "unsafe_split.Tensor": _split,
    "unsafe_split_with_sizes": _split_sizes,
    **_edge_pads(_edge_pad),
    "flip": flip,
    "roll": _roll,
    "repeat": _repeat,
    "rot90": lambda x, k, dims: _rot90(x, k % 4, dims),
    "tril": lambda x, diagonal: x.tril(_inside(x, diagonal)) if 0 not in x.shape else x,
    "triu": lambda x, diagonal: x.triu(_inside(x, diagonal)) if 0 not in x.shape else x,
    "diag_embed": _diag_embed,
    "trace": lambda x: sums(diagonal(x)),
    "diagonal_scatter": _diagonal_scatter,
    "diagonal_backward": lambda grad, sizes, offset, dim1, dim2: _diagonal_scatter(
        full(sizes, 0, grad.dtype), grad, offset, dim1, dim2
    ),
    "slice_scatter": _slice_scatter,
    "slice_backward": _slice_backward,
    "select_scatter": _select_scatter,
    "select_backward": lambda grad, sizes, dim, index: _select_scatter(
        full(sizes, 0, grad.dtype), grad, dim, index
    ),
    "as_strided_scatter": _as_strided_scatter,
    "im2col": _im2col,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _channel_shuffle),
}
_ADJOINTS: dict[str, Function] = {
    **_edge_pads(_edge_pad_backward, "_backward"),
    "unfold_backward": _unfold_backward,
    "col2im": _col2im,
}
TABLE: Table = {
    **rules(_LIGHT, complex_of=by_parts),
    # Every place looks at all that may have gone there.
    **rules(_ADJOINTS, heavy, by_parts),
    "constant_pad_nd": Rule(_constant_pad, by_parts(_constant_pad, 2)),
    "cat": concatenate,
    "stack": stack,
    **dict.fromkeys(("view.dtype", "view_copy.dtype"), _bitcast),
}
