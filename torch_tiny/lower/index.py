"""Indexing. An equality with positions under a sum is what the compiler turns into a load."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch_tiny.lower.arithmetic import add, maximum, minimum, signbit
from torch_tiny.lower.complex_parts import by_parts, with_number
from torch_tiny.lower.conditions import require, require_index
from torch_tiny.lower.pick import gathered, hits, kept, picked
from torch_tiny.lower.promote import (
    NoLowering,
    Number,
    Operand,
    as_uop,
    cast,
    filling,
    is_float,
    math_dtype,
)
from torch_tiny.lower.reduce import amax, amin, cumsum
from torch_tiny.lower.rule import Function, Rule, Table, heavy, rules
from torch_tiny.lower.shapes import Shape, arange, full, full_like, positions, total, wrap_dim
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape


def take(x: UOp, dim: int, index: UOp) -> UOp:
    """Elements of a dimension by a 1-d index: x.index_select(dim, index)."""
    shape, n = int_shape(x), int_shape(index)[0]
    require_index(index, shape[dim])
    if 0 in (*shape, n):
        return full((*shape[:dim], n, *shape[dim + 1 :]), 0, x.dtype)
    index = index.reshape((n, *(1,) * (len(shape) - dim)))
    hit = hits(index, 1, shape[dim])
    return picked(hit, x.unsqueeze(dim), dim + 1)


def place(values: UOp, dim: int, index: UOp, size: int) -> UOp:
    """The adjoint of `take`: the sum of the values whose index is each position."""
    require_index(index, size)
    shape = int_shape(values)
    if 0 in shape:
        return full((*shape[:dim], size, *shape[dim + 1 :]), 0, values.dtype)
    hit = hits(index.reshape((1, -1, *(1,) * (len(shape) - dim - 1))), 0, size)
    placed = total(kept(hit, values.unsqueeze(dim)), (dim + 1,))
    # What became a load is a sum, too, and never -0.0.
    return cast(placed + 0.0 if is_float(values.dtype) else placed, values.dtype)


def gather(x: UOp, dim: int, index: UOp, _sparse: bool = False) -> UOp:
    if index.ndim == 0 or x.ndim == 0:
        return gather(x.reshape((-1,)), 0, index.reshape((-1,))).reshape(int_shape(index))
    dim, shape = wrap_dim(dim, x.ndim), int_shape(index)
    if 0 in shape:
        return full(shape, 0, x.dtype)
    require_index(index, int_shape(x)[dim])
    return gathered(x, dim, index)


def take_flat(x: UOp, index: UOp) -> UOp:
    """Elements of the flattened tensor, in the shape of the index."""
    flat = x.reshape((-1,))
    wrapped = _not_negative(index, int_shape(flat)[0])
    return take(flat, 0, wrapped.reshape((-1,))).reshape(int_shape(index))


def index_tensor(x: UOp, indices: Sequence[UOp | None]) -> UOp:
    """x[i, :, j]: the indexed dimensions become one, which is indexed by their flat position."""
    moved, order, flat, spread, first = _indexed(x, indices)
    rows = take(moved, 0, flat.reshape((-1,))).reshape((*spread, *int_shape(moved)[1:]))
    # The result's indexed dimensions stand where they were if they were next to each other.
    lead, last = len(spread), len(spread) + len(order)
    return rows.permute((*range(lead, lead + first), *range(lead), *range(lead + first, last)))


def index_put(x: UOp, indices: Sequence[UOp | None], values: UOp, accumulate: bool = False) -> UOp:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == dtypes.bool:
        return _put_mask(x, indices[0], values, accumulate)
    moved, order, flat, spread, first = _indexed(x, indices)
    lead, rest = len(spread), int_shape(moved)[1:]
    shown = (*rest[:first], *spread, *rest[first:])
    values = cast(values, x.dtype).expand(shown)
    values = values.permute(
        (*range(first, first + lead), *range(first), *range(first + lead, len(shown)))
    ).reshape((math.prod(spread), *rest))
    flat = flat.reshape((-1,))
    changed = (_with_added if accumulate else _stored)(moved, flat, values)
    back = [d for d in range(x.ndim) if d not in order]
    sizes = int_shape(x)
    unmoved = changed.reshape((*(sizes[d] for d in back), *rest))
    places = [*back, *order]
    return unmoved.permute(tuple(places.index(d) for d in range(x.ndim)))


def _indexed(x: UOp, indices: Sequence[UOp | None]) -> tuple[UOp, list[int], UOp, Shape, int]:
    """x with the indexed dimensions joined in front, the others, the flat index, its shape, and
    before how many of the others the indexed dimensions appear in the result."""
    shape = int_shape(x)
    found = [(d, index) for d, index in enumerate(indices) if index is not None]
    if any(index.dtype in (dtypes.bool, dtypes.uint8) for _, index in found):
        raise NoLowering("a mask as an index gives a result whose size depends on data")
    dims = [d for d, _ in found]
    others = [d for d in range(x.ndim) if d not in dims]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    flat: UOp | None = None
    for d, index in found:
        require_index(index, shape[d], from_end=True)
        step = _not_negative(index.cast(dtypes.int64), shape[d])
        flat = step if flat is None else flat * shape[d] + step
    assert flat is not None
    rows = math.prod(shape[d] for d in dims)
    moved = x.permute((*dims, *others)).reshape((rows, *(shape[d] for d in others)))
    return moved, others, flat, int_shape(flat), dims[0] if adjacent else 0


def _put_mask(x: UOp, mask: UOp, values: UOp, accumulate: bool) -> UOp:
    """One value for all true elements, or one for each of them in turn."""
    rest = int_shape(x)[mask.ndim :]
    if values.ndim <= len(rest) or int_shape(values)[0] == 1:
        mask = mask.reshape((*int_shape(mask), *(1,) * len(rest)))
        spare = values.ndim - len(rest)
        value = cast(values.squeeze(0) if spare == 1 else values, x.dtype)
        return mask.where(add(x, value) if accumulate else value, x)
    flat = mask.reshape((-1,))
    n = int_shape(values)[0]
    if 0 in (n, *int_shape(x)):
        return x
    true = flat.cast(dtypes.int32)
    order = cumsum(true, 0, dtypes.int32) - true
    require(total(true, (0,)).eq(n))
    rows = cast(values, x.dtype).expand((n, *rest))
    given = take(rows, 0, minimum(order, full_like(order, n - 1)))
    own = x.reshape((-1, *rest))
    new = add(own, given) if accumulate else given
    return flat.reshape((-1, *(1,) * len(rest))).where(new, own).reshape(int_shape(x))


def _with_added(x: UOp, index: UOp, values: UOp, dim: int = 0) -> UOp:
    """x and the values at their index; what nothing is added to stays as it is."""
    values, n = values.cast(math_dtype(x.dtype)), int_shape(x)[dim]
    own = x.cast(values.dtype)
    both = add(own, place(values, dim, index, n))
    if is_float(x.dtype):
        both = place(_changes(values).cast(dtypes.int32), dim, index, n).ne(0).where(both, own)
    return cast(both, x.dtype)


def _changes(values: UOp) -> UOp:
    """Whether a sum is another one for them: not for -0.0, and only for that -0.0 stays -0.0."""
    return values.ne(0) | signbit(values).logical_not()


def _stored(x: UOp, index: UOp, values: UOp) -> UOp:
    """Rows of x replaced; where an index repeats the last one stays, as on the CPU."""
    n, m = int_shape(x)[0], int_shape(index)[0]
    require_index(index, n)
    if 0 in (n, m):
        return x
    last = (
        hits(index.reshape((1, m)), 0, n)
        .where(arange(m).reshape((1, m)) + 1, full((), 0, dtypes.int32))
        .max((1,))
    )
    stored = take(values, 0, maximum(last - 1, full_like(last, 0)))
    return last.reshape((n, *(1,) * (x.ndim - 1))).ne(0).where(stored, x)


# --- scatter along a dimension ---


def scatter(x: UOp, dim: int, index: UOp, source: Operand) -> UOp:
    if 0 in index.shape:
        return x
    hit, values, over = _scattered(x, dim, index, source)
    order = positions(int_shape(hit), over) + 1
    last = hit.where(order, full((), 0, dtypes.int32)).max((over,), keepdim=True)
    last = last.squeeze(over)
    stored = gathered(values.squeeze(over - 1), over - 1, maximum(last - 1, full_like(last, 0)))
    return last.ne(0).where(stored, _as_1d(x)).reshape(int_shape(x))


def scatter_reduce(
    x: UOp, dim: int, index: UOp, source: Operand, reduce: str, include_self: bool = True
) -> UOp:
    if 0 in index.shape:
        return x
    wide = math_dtype(x.dtype)
    hit, values, over = _scattered(x.cast(wide), dim, index, source)
    own, touched = _as_1d(x.cast(wide)), hit.max((over,))
    combine, reducer, identity = REDUCTIONS[_NAMES.get(reduce, reduce)]
    neutral = full((), identity(wide), wide)
    reduced = reducer(hit.where(values, neutral), over)
    if not include_self:
        own = touched.where(full_like(own, identity(wide)), own)
    result = combine(own, reduced)
    if combine is add and is_float(wide):
        result = (hit & _changes(values)).max((over,)).where(result, own)
    if reduce == "mean":
        n = total(hit.cast(dtypes.int32), (over,)) + int(include_self)
        n = n.eq(0).where(full_like(n, 1), n).cast(wide)
        result = result / n if is_float(wide) else result.div(n, rounding_mode="floor")
    return cast(touched.where(result, _as_1d(x.cast(wide))), x.dtype).reshape(int_shape(x))


scatter_add = partial(scatter_reduce, reduce="sum")


def _scattered(x: UOp, dim: int, index: UOp, source: Operand) -> tuple[UOp, UOp, int]:
    """Which source element goes where, over a dimension put after `dim`; the source; its place."""
    x, index = _as_1d(x), _as_1d(index)
    dim = wrap_dim(dim, x.ndim)
    shape, part = int_shape(x), int_shape(index)
    values = as_uop(source, x.dtype)
    values = values.expand(part) if values.ndim == 0 else values
    values = values.shrink(tuple((0, n) for n in part))
    index, size = index.unsqueeze(dim), shape[dim]
    require_index(index, size)
    grown = [(0, n - m) for n, m in zip(shape, part, strict=True)]
    grown[dim : dim + 1] = [(0, 0), (0, 0)]
    hit = hits(index, dim, size)
    return hit.pad(tuple(grown)), values.unsqueeze(dim).pad(tuple(grown)), dim + 1


_NAMES = {"add": "sum", "multiply": "prod", "mean": "sum"}
REDUCTIONS: dict[str, tuple[Callable[..., UOp], Callable[[UOp, int], UOp], Callable[..., Any]]] = {
    "sum": (
        add,
        lambda x, d: x.max((d,)) if x.dtype == dtypes.bool else total(x, (d,)),
        lambda _: 0,
    ),
    "prod": (lambda a, b: a * b, lambda x, d: x.prod((d,)), lambda _: 1),
    "amax": (maximum, lambda x, d: amax(x, (d,)), lambda t: t.min),
    "amin": (minimum, lambda x, d: amin(x, (d,)), lambda t: t.max),
}


# --- embedding and one-dimensional index operators ---


def embedding(weight: UOp, index: UOp, *_: Any) -> UOp:
    rows = take(weight, 0, index.reshape((-1,)))
    return rows.reshape((*int_shape(index), *int_shape(weight)[1:]))


def embedding_dense_backward(
    grad: UOp, index: UOp, rows: int, padding: int, scale_by_frequency: bool
) -> UOp:
    if scale_by_frequency:
        raise NoLowering("gradients scaled by frequency")
    index = index.reshape((-1,))
    values = grad.reshape((-1, int_shape(grad)[-1]))
    skipped = index.eq(padding).unsqueeze(1)
    return place(skipped.where(full_like(values, 0), values), 0, index, rows)


def index_add(x: UOp, dim: int, index: UOp, source: UOp, alpha: Number) -> UOp:
    x1, dim = _as_1d(x), wrap_dim(dim, x.ndim)
    wide = math_dtype(x.dtype)
    values = _as_1d(source).cast(wide)
    values = values & as_uop(alpha, wide) if wide == dtypes.bool else values * as_uop(alpha, wide)
    return _with_added(x1, index.reshape((-1,)), values, dim).reshape(int_shape(x))


def _index_reduce(
    x: UOp, dim: int, index: UOp, source: UOp, reduce: str, include_self: bool
) -> UOp:
    """A scatter whose index is the same for all other dimensions."""
    x1, values, dim = _as_1d(x), _as_1d(source), wrap_dim(dim, x.ndim)
    n = int_shape(index.reshape((-1,)))[0]
    shape = tuple(n if d == dim else m for d, m in enumerate(int_shape(x1)))
    spread = index.reshape(tuple(n if d == dim else 1 for d in range(x1.ndim))).expand(shape)
    return scatter_reduce(x1, dim, spread, values, reduce, include_self).reshape(int_shape(x))


def _index_copy(x: UOp, dim: int, index: UOp, source: UOp) -> UOp:
    x1, dim = _as_1d(x), wrap_dim(dim, x.ndim)
    order = (dim, *(d for d in range(x1.ndim) if d != dim))
    back = tuple(order.index(d) for d in range(x1.ndim))
    stored = _stored(x1.permute(order), index.reshape((-1,)), _as_1d(source).permute(order))
    return stored.permute(back).reshape(int_shape(x))


def _index_fill(x: UOp, dim: int, index: UOp, value: Operand) -> UOp:
    x1, dim = _as_1d(x), wrap_dim(dim, x.ndim)
    n = int_shape(x1)[dim]
    index = _not_negative(index.reshape((-1,)), n)
    if 0 in (*index.shape, n):
        return x
    hit = hits(index.reshape((1, -1)), 0, n).max((1,)).reshape((n, *(1,) * (x1.ndim - dim - 1)))
    return hit.where(filling(value, x.dtype), x1).reshape(int_shape(x))


def _index_select(x: UOp, dim: int, index: UOp) -> UOp:
    selected = take(_as_1d(x), wrap_dim(dim, x.ndim), index.reshape((-1,)))
    return selected if x.ndim else selected.reshape(())


def _put(x: UOp, index: UOp, source: UOp, accumulate: bool) -> UOp:
    flat, values = x.reshape((-1,)), source.reshape((-1,))
    index = _not_negative(index.reshape((-1,)), int_shape(flat)[0])
    changed = (_with_added if accumulate else _stored)(flat, index, values)
    return changed.reshape(int_shape(x))


def _as_1d(x: UOp) -> UOp:
    return x if x.ndim else x.reshape((1,))


def _not_negative(index: UOp, size: int) -> UOp:
    """For the operators that count negative indices from the end; to others they are errors."""
    require_index(index, size, from_end=True)
    return index if index.dtype == dtypes.uint8 else (index < 0).where(index + size, index)


_OF_REAL: dict[str, Function] = {
    **dict.fromkeys(
        ("scatter.reduce", "scatter.value_reduce", "scatter_reduce.two"), scatter_reduce
    ),
    "index_reduce": _index_reduce,
}
_READS: dict[str, Function] = {
    "index_select": _index_select,
    "gather": gather,
    "take": take_flat,
    **dict.fromkeys(("index.Tensor", "_unsafe_index.Tensor"), index_tensor),
    "embedding": embedding,
}
_WRITES: dict[str, Function] = {
    "scatter.src": scatter,
    "scatter_add": scatter_add,
    **dict.fromkeys(("index_put", "_unsafe_index_put"), index_put),
    "_index_put_impl": lambda *args: index_put(*args[:-1]),
    "index_copy": _index_copy,
    "put": _put,
    "embedding_dense_backward": embedding_dense_backward,
}
_WRITES_OF_NUMBERS: dict[str, Function] = {
    "scatter.value": scatter,
    **dict.fromkeys(("index_fill.int_Scalar", "index_fill.int_Tensor"), _index_fill),
}
TABLE: Table = {
    **rules(_READS, complex_of=by_parts),
    # Every place looks at all indices.
    **rules(_WRITES, heavy, by_parts),
    **rules(_WRITES_OF_NUMBERS, heavy, with_number),
    **rules(_OF_REAL, heavy),
    "index_add": Rule(index_add, cost=heavy),
}
