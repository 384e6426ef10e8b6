"""Reductions and scans."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_tiny.lower.arithmetic import absolute, exp, is_nan, log, log_add, maximum
from torch_tiny.lower.complex_parts import by_parts
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import Lifted, Number, as_uop, cast, float_dtype, is_float, math_dtype
from torch_tiny.lower.rule import Function, Rule, Table, heavy, rules
from torch_tiny.lower.shapes import (
    along,
    arange,
    count,
    full,
    full_like,
    kept_shape,
    lowest,
    pad,
    positions,
    to_dtype,
    total,
    widths,
    wrap_dim,
    wrap_dims,
)
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import cut, int_shape

Dims = Sequence[int] | int | None


def sums(x: UOp, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    result = to_dtype(dtype, x.dtype if is_float(x.dtype) else dtypes.int64)
    return cast(total(cast(x, result), wrap_dims(dims, x.ndim), keepdim), result)


def mean(x: UOp, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    result = to_dtype(dtype, float_dtype(x.dtype))
    over = wrap_dims(dims, x.ndim)
    return cast(total(cast(x, result), over, keepdim) / float(count(x, over)), result)


def moments(x: UOp, over: tuple[int, ...]) -> tuple[UOp, UOp]:
    """The mean, and the sum of squares around it; dimensions are kept.

    Both are corrected for the rounding of the mean: equal numbers have no variance on the CPU, and
    a norm would enlarge what is left of it by 1/sqrt(eps).
    """
    n = float(count(x, over))
    rough = total(x, over, True) / n
    rest = x - rough
    excess = total(rest, over, True)
    shift = excess / n
    squares = total(rest * rest, over, True) - excess * shift
    is_finite = shift.eq(shift)  # else the rough mean tells which infinity it is
    return is_finite.where(rough + shift, rough), maximum(squares, full((), 0, x.dtype))


def product(x: UOp, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    result = to_dtype(dtype, x.dtype if is_float(x.dtype) else dtypes.int64)
    wide = cast(x, result).cast(math_dtype(result))
    return cast(wide.prod(wrap_dims(dims, x.ndim), keepdim=keepdim), result)


def amax(x: UOp, dims: Dims = None, keepdim: bool = False) -> UOp:
    """NaN wins, as code generation has it for every float maximum."""
    over = wrap_dims(dims, x.ndim)
    return x.max(over, keepdim=keepdim) if over else x


def amin(x: UOp, dims: Dims = None, keepdim: bool = False) -> UOp:
    return _mirrored(amax(_mirrored(x), dims, keepdim))


def argmax(x: UOp, dim: int | None, keepdim: bool) -> UOp:
    """The first maximum; a NaN is larger than all."""
    if dim is None:
        index = argmax(x.reshape((-1,)), 0, False)
        return index.reshape((1,) * x.ndim) if keepdim else index
    if x.ndim == 0:
        return full((), 0, dtypes.int64)
    dim = wrap_dim(dim, x.ndim)
    size = int_shape(x)[dim]
    best = x.eq(amax(x, dim, True)) | is_nan(x)
    rank = size - positions(int_shape(x), dim)
    first = best.where(rank, full((), 0, dtypes.int32)).max((dim,), keepdim=keepdim)
    return (size - first).cast(dtypes.int64)


def argmin(x: UOp, dim: int | None, keepdim: bool) -> UOp:
    return argmax(_mirrored(x), dim, keepdim)


def var_mean(
    x: UOp, dims: Dims = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[UOp, UOp]:
    over = wrap_dims(dims, x.ndim)
    wide = x.cast(math_dtype(x.dtype))
    n = count(x, over)
    average, squares = moments(wide, over)
    degrees = float(n) - as_uop(1 if correction is None else correction, wide.dtype)
    degrees = (degrees > 0).where(degrees, full((), 0, wide.dtype))  # 0 also for NaN
    shape = kept_shape(int_shape(x), over, keepdim)
    return cast((squares / degrees).reshape(shape), x.dtype), cast(average.reshape(shape), x.dtype)


def _std(x: UOp, dims: Dims, correction: Number | None, keepdim: bool) -> UOp:
    variance, _ = var_mean(x.cast(math_dtype(x.dtype)), dims, correction, keepdim)
    return cast(call("sqrt", variance), x.dtype)


def unbiased(name: str, function: Function) -> dict[str, Function]:
    """The overloads that say `unbiased` for a correction of 1."""
    return {
        name: lambda x, unbiased: function(x, None, int(unbiased), False),
        f"{name}.dim": lambda x, dims, unbiased, keepdim: function(x, dims, int(unbiased), keepdim),
        f"{name}.correction": function,
    }


def logsumexp(x: UOp, dims: Dims, keepdim: bool) -> UOp:
    wide = cast(x, math_dtype(float_dtype(x.dtype)))
    over = wrap_dims(dims, x.ndim)
    top = amax(wide, over, keepdim=True)
    top = absolute(top).eq(math.inf).where(full_like(top, 0), top)
    result = log(total(exp(wide - top), over, keepdim)) + top.reshape(
        kept_shape(int_shape(x), over, keepdim)
    )
    return cast(result, float_dtype(x.dtype))


def vector_norm(
    x: UOp, ord_: Number | None, dims: Dims = None, keepdim: bool = False,
    dtype: DType | None = None,
) -> UOp:  # fmt: skip
    ord_ = 2 if ord_ is None else ord_
    result = to_dtype(dtype, float_dtype(x.dtype))
    size = absolute(cast(x, result).cast(math_dtype(result)))
    over = wrap_dims(dims, x.ndim)
    orders: dict[float, Callable[[], UOp]] = {
        math.inf: lambda: amax(size, over, keepdim),
        -math.inf: lambda: amin(size, over, keepdim),
        0.0: lambda: total(size.ne(0).cast(size.dtype), over, keepdim),
        1.0: lambda: total(size, over, keepdim),
        2.0: lambda: call("sqrt", total(size * size, over, keepdim)),
    }
    rule = None if isinstance(ord_, Lifted) else orders.get(float(ord_))
    if rule is not None:
        return cast(rule(), result)
    if count(size, over) == 0:
        return full(kept_shape(int_shape(x), over, keepdim), 0, result)
    p = as_uop(ord_, size.dtype)
    return cast(call("pow", total(call("pow", size, p), over, keepdim), p.reciprocal()), result)


def _renorm(x: UOp, p: Number, dim: int, limit: Number) -> UOp:
    wide, dim = x.cast(math_dtype(x.dtype)), wrap_dim(dim, x.ndim)
    norm = vector_norm(wide, p, [d for d in range(x.ndim) if d != dim], True)
    most = as_uop(limit, wide.dtype)
    return cast((most < norm).where(wide * (most / (norm + 1e-7)), wide), x.dtype)


def _any(x: UOp, dims: Dims = None, keepdim: bool = False, of_all: bool = False) -> UOp:
    true = cast(x, dtypes.bool)
    asked = true.logical_not() if of_all else true
    found = asked.max(wrap_dims(dims, x.ndim), keepdim=keepdim)
    found = found.logical_not() if of_all else found
    return found.cast(dtypes.uint8) if x.dtype == dtypes.uint8 else found


def _mirrored(x: UOp) -> UOp:
    """Values in the opposite order, so that a minimum is a maximum."""
    return -x if is_float(x.dtype) else ~x


# --- scans: every element looks at all before it ---


def _scanned(x: UOp, dim: int) -> tuple[UOp, UOp, int]:
    """Elements along a new dimension after `dim`, and which of them are not after `dim`'s."""
    dim = wrap_dim(dim, x.ndim)
    shape = int_shape(x)
    size = shape[dim]
    spread = x.unsqueeze(dim).expand((*shape[:dim], size, *shape[dim:]))
    here, there = (along(arange(size), d, x.ndim - dim + 1) for d in (0, 1))
    return spread, there <= here, dim + 1


@dataclass(frozen=True)
class _Scan:
    """What becomes of several elements, of two parts, and of none."""

    reduce: Callable[[UOp, tuple[int, ...]], UOp]
    combine: Callable[[UOp, UOp], UOp]
    identity: bool | int | float


_SHORT = 256  # longer dimensions are scanned in rows, and then the rows' ends


def _scan(x: UOp, dim: int, how: _Scan) -> UOp:
    """For each element what becomes of all up to it."""
    n = int_shape(x)[dim]
    if n <= _SHORT:
        spread, before, over = _scanned(x, dim)
        return how.reduce(before.where(spread, full((), how.identity, x.dtype)), (over,))
    width = 1 << math.ceil(math.log2(math.sqrt(n)))
    rows = -(-n // width)
    padded = pad(x, widths(x.ndim, dim, 0, rows * width - n), how.identity)
    inner = _scan(padded.unflatten(dim, (rows, width)), dim + 1, how)
    ends = cut(inner, dim + 1, width - 1, width)
    carried = cut(_scan(ends, dim, how), dim, 0, rows - 1)
    carried = pad(carried, widths(carried.ndim, dim, 1, 0), how.identity)
    return cut(how.combine(inner, carried).flatten(dim, dim + 1), dim, 0, n)


def _cumulative(how: _Scan, x: UOp, dim: int, dtype: DType | None = None) -> UOp:
    result = to_dtype(dtype, x.dtype if is_float(x.dtype) else dtypes.int64)
    wide = cast(x, result).cast(math_dtype(result))
    if x.ndim == 0 or 0 in x.shape:
        return cast(wide, result)
    return cast(_scan(wide, wrap_dim(dim, x.ndim), how), result)


cumsum = functools.partial(_cumulative, _Scan(total, operator.add, 0))


def _maxima(x: UOp, dim: int) -> UOp:
    return _scan(x, dim, _Scan(amax, maximum, lowest(x.dtype)))


def _cumulative_best(x: UOp, dim: int) -> tuple[UOp, UOp]:
    """cummax: values, and the last index that holds them."""
    if x.ndim == 0 or 0 in x.shape:
        return x, full(int_shape(x), 0, dtypes.int64)
    dim, x = wrap_dim(dim, x.ndim), x.contiguous()  # which is read many times
    values = _maxima(x, dim)
    # The last one that was the greatest when it came.
    came = x.eq(values) | is_nan(x)
    at = came.where(positions(int_shape(x), dim), full((), 0, dtypes.int32))
    index = _maxima(at, dim)
    # -0.0 and 0.0 are equal; of them the result is the one that the index names.
    values = gathered(x, dim, index) if is_float(x.dtype) else values
    return values, index.cast(dtypes.int64)


def _cumulative_least(x: UOp, dim: int) -> tuple[UOp, UOp]:
    values, index = _cumulative_best(_mirrored(x), dim)
    return _mirrored(values), index


def _logcumsumexp(x: UOp, dim: int) -> UOp:
    if x.ndim == 0 or 0 in x.shape:
        return x
    how = _Scan(lambda v, dims: logsumexp(v, dims, False), log_add, -math.inf)
    return cast(_scan(x.cast(math_dtype(x.dtype)), wrap_dim(dim, x.ndim), how), x.dtype)


_LINEAR: dict[str, Function] = {
    "sum": lambda x, dtype: sums(x, None, False, dtype),
    "sum.dim_IntList": sums,
    "mean": lambda x, dtype: mean(x, None, False, dtype),
    "mean.dim": mean,
}
_SCANS: dict[str, Function] = {
    "cumprod": functools.partial(_cumulative, _Scan(lambda x, dims: x.prod(dims), operator.mul, 1)),
    "cummax": _cumulative_best,
    "cummin": _cumulative_least,
    **dict.fromkeys(("logcumsumexp", "_logcumsumexp"), _logcumsumexp),
    # They write the two tensors that they are given after x.
    "_cummax_helper": lambda x, _values, _index, dim: _cumulative_best(x, dim),
    "_cummin_helper": lambda x, _values, _index, dim: _cumulative_least(x, dim),
}
PLAIN: dict[str, Function] = {
    "nansum": lambda x, dims, keepdim, dtype: sums(
        is_nan(x).where(full_like(x, 0), x), dims, keepdim, dtype
    ),
    "prod": lambda x, dtype: product(x, None, False, dtype),
    "prod.dim_int": product,
    **dict.fromkeys(("amax", "max"), amax),
    **dict.fromkeys(("amin", "min"), amin),
    "aminmax": lambda x, *over: (amin(x, *over), amax(x, *over)),
    "max.dim": lambda x, *over: (amax(x, *over), argmax(x, *over)),
    "min.dim": lambda x, *over: (amin(x, *over), argmin(x, *over)),
    "argmax": argmax,
    "argmin": argmin,
    **unbiased("var", lambda *args: var_mean(*args)[0]),
    **unbiased("std", _std),
    **unbiased("var_mean", var_mean),
    **unbiased("std_mean", lambda *args: (_std(*args), var_mean(*args)[1])),
    "logsumexp": logsumexp,
    "linalg_vector_norm": vector_norm,
    **dict.fromkeys(("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"), vector_norm),
    "norm.ScalarOpt_dtype": lambda x, p, dtype: vector_norm(x, p, None, False, dtype),
    "dist": lambda a, b, p: vector_norm(a - b, p),
    "renorm": _renorm,
    **dict.fromkeys(("any", "any.dim", "any.dims"), _any),
    **dict.fromkeys(("all", "all.dim", "all.dims"), functools.partial(_any, of_all=True)),
    **dict.fromkeys(
        ("count_nonzero", "count_nonzero.dim_IntList"),
        lambda x, dims: sums(cast(x, dtypes.bool), dims),
    ),
}
TABLE: Table = {
    **PLAIN,
    **rules(_LINEAR, complex_of=lambda rule: by_parts(rule, 0)),
    **rules(_SCANS, heavy),
    "cumsum": Rule(cumsum, by_parts(cumsum, 0), heavy),
}
