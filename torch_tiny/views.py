"""Strided views of a flat buffer as movement ops, and movement ops as strided views."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch_tiny.uops import DType, Ops, UOp, constant, dtypes


@dataclass(frozen=True)
class ViewSpec:
    """A tensor's sizes, strides and offset over its storage, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def contiguous(shape: tuple[int, ...], offset: int = 0) -> "ViewSpec":
        return ViewSpec(shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), offset)

    def is_contiguous(self) -> bool:
        """Whether elements lie row by row."""
        plain = ViewSpec.contiguous(self.shape).strides
        sized = zip(self.shape, self.strides, plain, strict=True)
        return 0 in self.shape or all(s == expected for n, s, expected in sized if n > 1)

    def overlaps(self) -> bool:
        """Whether elements share memory; or may, where it is long to find out."""
        if any(n > 1 and stride == 0 for n, stride in zip(self.shape, self.strides, strict=True)):
            return 0 not in self.shape
        steps = zip(self.shape, self.strides, strict=True)
        reach = self.offset + 1 + sum((n - 1) * stride for n, stride in steps)
        if 0 in self.shape or _moves(reach, self) is not None:
            return False
        if math.prod(self.shape) > _MOST_COUNTED:
            return True
        places = {0}
        for n, stride in zip(self.shape, self.strides, strict=True):
            places = {place + i * stride for place in places for i in range(n)}
        return len(places) < math.prod(self.shape)


_MOST_COUNTED = 1 << 16


def read(flat: UOp, spec: ViewSpec) -> UOp:
    """The value of a view over a flat buffer."""
    if 0 in spec.shape:
        return _filled(0, flat.dtype, spec.shape)
    moves = _moves(int_shape(flat)[0], spec)
    if moves is None:
        # An equality with arange under a sum is what the compiler turns back into an index.
        return flat.gather(0, _places(spec)).reshape(spec.shape)
    for move in moves:
        flat = move.forward(flat)
    return flat


def write(flat: UOp, spec: ViewSpec, value: UOp) -> UOp:
    """The flat buffer after `value` was written through a view of it."""
    if 0 in spec.shape:
        return flat
    moves = _moves(int_shape(flat)[0], spec)
    if moves is None:
        return _scattered(flat, spec, value)
    value = value.cast(flat.dtype).expand(spec.shape)
    reached = _filled(True, dtypes.bool, spec.shape)
    for move in reversed(moves):
        value, reached = move.backward(value), move.backward(reached)
    covers_all = math.prod(_distinct(spec)) == flat.shape[0]
    return value if covers_all else reached.where(value, flat)


def from_movement(uop: UOp) -> ViewSpec | None:
    """The view of its base that a chain of movement ops is; None where no single one exists."""
    chain: list[UOp] = []
    while uop.op in (Ops.RESHAPE, Ops.EXPAND, Ops.SHRINK, Ops.PERMUTE, Ops.PAD, Ops.FLIP):
        chain.append(uop)
        uop = uop.src[0]
    spec: ViewSpec | None = ViewSpec.contiguous(int_shape(uop))
    for move in reversed(chain):
        if spec is None or (fold := _FOLDS.get(move.op)) is None:
            return None
        spec = fold(spec, move.marg)
    return spec


def int_shape(uop: UOp) -> tuple[int, ...]:
    """A shape without symbolic sizes, which torch_tiny never has."""
    return tuple(int(n) for n in uop.shape)


def cut(x: UOp, dim: int, start: int, stop: int) -> UOp:
    return x.shrink(tuple((start, stop) if d == dim else None for d in range(x.ndim)))


@dataclass(frozen=True)
class _Move:
    """A movement and what undoes it: `backward(forward(x))` puts what was taken where it was."""

    forward: Callable[[UOp], UOp]
    backward: Callable[[UOp], UOp]


def _moves(length: int, spec: ViewSpec) -> list[_Move] | None:
    """From a flat buffer to the view; None if elements overlap other than by a broadcast."""
    kept = [d for d, (n, stride) in enumerate(zip(spec.shape, spec.strides, strict=True))
            if n > 1 and stride > 0]  # fmt: skip
    kept.sort(key=lambda d: spec.strides[d], reverse=True)
    sizes, strides = [spec.shape[d] for d in kept], [spec.strides[d] for d in kept]
    # spans[i] is how far dimensions i and after reach.
    spans = [1 + sum((n - 1) * s for n, s in zip(sizes[i:], strides[i:], strict=True))
             for i in range(len(kept) + 1)]  # fmt: skip
    if any(span > stride for stride, span in zip(strides, spans[1:], strict=True)):
        return None
    moves: list[_Move] = []
    offset = spec.offset
    if not _rows_hold(offset, strides, spans):
        moves.append(_window(0, length, offset, length - offset))
        length, offset = length - offset, 0
    for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        start, offset = divmod(offset, stride)
        rows = -(-length // stride) if length % stride == 0 else start + size
        moves += [
            _window(dim, length, 0, rows * stride),
            _split(dim, rows, stride),
            _window(dim, rows, start, size),
        ]
        length = stride
    moves.append(_window(len(kept), length, offset, 1))
    order = sorted(range(len(kept)), key=lambda i: kept[i])
    moves.append(_permute_and_drop_last(order))
    moves.append(_broadcast(spec, [spec.shape[kept[i]] for i in order]))
    return moves


def _rows_hold(offset: int, strides: list[int], spans: list[int]) -> bool:
    """Whether, with the buffer cut into rows of each stride, no row of the view crosses a cut."""
    for stride, span in zip(strides, spans[1:], strict=True):
        offset %= stride
        if offset + span > stride:
            return False
    return True


def _window(dim: int, length: int, start: int, size: int) -> _Move:
    """Elements [start, start + size) of a dimension; zeros beyond its end."""

    def forward(x: UOp) -> UOp:
        kept = cut(x, dim, start, min(length, start + size))
        return _padded(kept, dim, 0, max(0, start + size - length))

    def backward(x: UOp) -> UOp:
        padded = _padded(x, dim, start, max(0, length - start - size))
        return cut(padded, dim, 0, length)

    return _Move(forward, backward)


def _split(dim: int, rows: int, stride: int) -> _Move:
    return _Move(lambda x: x.unflatten(dim, (rows, stride)), lambda x: x.flatten(dim, dim + 1))


def _permute_and_drop_last(order: list[int]) -> _Move:
    back = sorted(range(len(order)), key=lambda i: order[i])
    return _Move(
        lambda x: x.reshape(x.shape[:-1]).permute(tuple(order)),
        lambda x: x.permute(tuple(back)).reshape((*(x.shape[i] for i in back), 1)),
    )


def _broadcast(spec: ViewSpec, sizes: list[int]) -> _Move:
    """Sizes of 1 and broadcast dimensions. A write through a broadcast keeps its last element."""
    distinct = _distinct(spec)

    def backward(x: UOp) -> UOp:
        last = tuple((n - d, n) for n, d in zip(spec.shape, distinct, strict=True))
        return x.shrink(last).reshape(tuple(sizes))

    return _Move(lambda x: x.reshape(distinct).expand(spec.shape), backward)


def _distinct(spec: ViewSpec) -> tuple[int, ...]:
    return tuple(n if stride > 0 else 1 for n, stride in zip(spec.shape, spec.strides, strict=True))


def _padded(x: UOp, dim: int, before: int, after: int) -> UOp:
    if before == after == 0:
        return x
    return x.pad(tuple((before, after) if d == dim else (0, 0) for d in range(x.ndim)))


def _scattered(flat: UOp, spec: ViewSpec, value: UOp) -> UOp:
    """Every element looks for the last write to it. Slow, and right for any strides."""
    places = _places(spec)
    count, length = int_shape(places)[0], int_shape(flat)[0]
    hit = places.eq(UOp.arange(length, dtype=dtypes.int32).unsqueeze(1))
    none = UOp.const(0, dtypes.int32)
    last = hit.where(UOp.arange(count, dtype=dtypes.int32) + 1, none).max(1)
    written = value.cast(flat.dtype).expand(spec.shape).reshape((-1,))
    return last.ne(0).where(written.gather(0, (last - 1).maximum(0)), flat)


def _places(spec: ViewSpec) -> UOp:
    """Where in the buffer each element of the view lies, in order."""
    ndim = len(spec.shape)
    places = _filled(spec.offset, dtypes.int32, spec.shape)
    for dim, (n, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        step = UOp.arange(n, dtype=dtypes.int32) * stride
        places = places + step.reshape(tuple(n if d == dim else 1 for d in range(ndim)))
    return places.reshape((-1,))


def _filled(value: int, dtype: DType, shape: tuple[int, ...]) -> UOp:
    return constant(value, dtype).reshape((1,) * len(shape)).expand(shape)


def _fold_reshape(spec: ViewSpec, shape: tuple[int, ...]) -> ViewSpec | None:
    """As PyTorch's `view`: dimensions may be joined only where the outer steps over the inner."""
    if 0 in shape:
        return ViewSpec.contiguous(shape, spec.offset)
    strides: list[int] = []
    blocks = _blocks(spec)
    size, stride = next(blocks, (1, 1))
    for n in reversed(shape):
        if n == 1:
            strides.append(stride)
            continue
        if size == 1:
            size, stride = next(blocks, (1, 1))
        if size % n:
            return None
        strides.append(stride)
        size, stride = size // n, stride * n
    strides.reverse()
    return ViewSpec(shape, tuple(strides), spec.offset)


def _blocks(spec: ViewSpec) -> Iterator[tuple[int, int]]:
    """(size, stride) of the runs that are evenly spaced, innermost first."""
    dims = [(n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n != 1]
    dims.reverse()
    if not dims:
        return
    size, step = dims[0]
    for (n, inner), (outer_n, outer) in pairwise(dims):
        if outer == inner * n:
            size *= outer_n
        else:
            yield size, step
            size, step = outer_n, outer
    yield size, step


def _fold_shrink(spec: ViewSpec, parts: tuple[tuple[int, int], ...]) -> ViewSpec:
    moved = sum(start * s for (start, _), s in zip(parts, spec.strides, strict=True))
    return ViewSpec(tuple(size for _, size in parts), spec.strides, spec.offset + moved)


_FOLDS: dict[Ops, Callable[[ViewSpec, tuple[int, ...]], ViewSpec | None]] = {
    Ops.RESHAPE: _fold_reshape,
    Ops.EXPAND: lambda spec, sizes: ViewSpec(
        (*sizes, *spec.shape), (*(0 for _ in sizes), *spec.strides), spec.offset
    ),
    Ops.SHRINK: _fold_shrink,  # type: ignore[dict-item]
    Ops.PERMUTE: lambda spec, order: ViewSpec(
        tuple(spec.shape[d] for d in order), tuple(spec.strides[d] for d in order), spec.offset
    ),
}
