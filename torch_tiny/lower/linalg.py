"""Factorizations and what is solved with them, by the kernels of torch_tiny.linalg."""

import math
from collections.abc import Sequence

from torch_tiny.linalg.routine import run
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.reduce import product
from torch_tiny.lower.tools import Results, Rule, arange, cut, full, total
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import int_shape

_TYPES = (dtypes.float32, dtypes.float64)


def cholesky(a: UOp, upper: bool) -> tuple[UOp, UOp]:
    """The factor and info."""
    batch, n, _ = _sizes(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    factor, info = _run("cholesky", (n, upper), batch, [(a.dtype, n * n), _INT], [a])
    return _by_columns(factor, batch, n, n), info.reshape(batch)


def lu_factor(a: UOp, pivot: bool = True) -> tuple[UOp, UOp, UOp]:
    """L and U in one matrix, pivots from 1, info."""
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = _sizes(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    results = [(a.dtype, m * n), (dtypes.int32, count), _INT]
    factors, pivots, info = _run("lu", (m, n), batch, results, [a])
    return (
        _by_columns(factors, batch, m, n),
        pivots.reshape((*batch, count)),
        info.reshape(batch),
    )


_INT = (dtypes.int32, 1)


def _solve(a: UOp, b: UOp, left: bool, _check: bool = False) -> tuple[UOp, UOp, UOp, UOp]:
    is_vector = _is_vector(a, b)
    right = b.unsqueeze(-1) if is_vector else b
    if not left and not is_vector:
        # X A = B is A^T X^T = B^T, but what is factored is A.
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, False, False)
        return x, factors, pivots, info
    batch, n, _ = _sizes(a)
    columns = int_shape(right)[-1]
    both = _batch(a, right)
    if 0 in (*a.shape, *right.shape) or both != batch:
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, True, False)
        return x.squeeze(-1) if is_vector else x, factors, pivots, info
    right = right.expand((*batch, n, columns))
    results = [(a.dtype, n * columns), (a.dtype, n * n), (dtypes.int32, n), _INT]
    x, factors, pivots, info = _run("solve", (n, columns), batch, results, [a, right])
    x = _by_columns(x, batch, n, columns)
    return (
        x.squeeze(-1) if is_vector else x,
        _by_columns(factors, batch, n, n),
        pivots.reshape((*batch, n)),
        info.reshape(batch),
    )


def _is_vector(a: UOp, b: UOp) -> bool:
    """As linalg.solve tells a batch of vectors from a matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and int_shape(a)[:-1] == int_shape(b))


def _inverse(a: UOp, _check: bool = False) -> tuple[UOp, UOp]:
    batch, n, _ = _sizes(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    results = [(a.dtype, n * n), (a.dtype, n * n), (dtypes.int32, n), _INT]
    x, _, _, info = _run("solve", (n, 0), batch, results, [a])
    return _by_columns(x, batch, n, n), info.reshape(batch)


def lu_solve(factors: UOp, pivots: UOp, b: UOp, left: bool, adjoint: bool) -> UOp:
    if not left:
        solved = lu_solve(factors, pivots, b.transpose(-1, -2), True, not adjoint)
        return solved.transpose(-1, -2)
    _, n, _ = _sizes(factors)
    columns = int_shape(b)[-1]
    batch = _batch(factors, b)
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    by_columns = factors.transpose(-1, -2).expand((*batch, n, n))
    pivots = pivots.expand((*batch, n))
    b = b.expand((*batch, n, columns))
    given = [by_columns, pivots, b]
    (x,) = _run("lu_solve", (n, columns, adjoint), batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def solve_triangular(a: UOp, b: UOp, upper: bool, left: bool, unit: bool) -> UOp:
    if not left:
        solved = solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unit)
        return solved.transpose(-1, -2)
    batch, n, columns = _batch(a, b), int_shape(a)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    given = [a.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper, unit)
    (x,) = _run("triangular_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def _triangular_solve(b: UOp, a: UOp, upper: bool, transpose: bool, unit: bool) -> Results:
    if transpose:
        return solve_triangular(a.transpose(-1, -2), b, not upper, True, unit), a
    return solve_triangular(a, b, upper, True, unit), a


def cholesky_solve(b: UOp, factor: UOp, upper: bool) -> UOp:
    batch, n, columns = _batch(factor, b), int_shape(factor)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    given = [factor.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper)
    (x,) = _run("cholesky_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def _cholesky_inverse(factor: UOp, upper: bool) -> UOp:
    batch, n, _ = _sizes(factor)
    return cholesky_solve(_identity(batch, n, n, factor.dtype), factor, upper)


def _det(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(a)
    return product(_diagonal(factors), -1) * _sign(pivots, a.dtype), factors, pivots


def _slogdet(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(a)
    diagonal = _diagonal(factors)
    one = full(int_shape(diagonal), 1, a.dtype)
    signs = (diagonal < 0).where(-one, diagonal.ne(0).where(one, diagonal * 0))
    sign = product(signs, -1) * _sign(pivots, a.dtype)
    size = call("log", call("fabs", diagonal)) if 0 not in a.shape else diagonal
    return sign, total(size, (size.ndim - 1,)), factors, pivots


def _lu(a: UOp, pivot: bool) -> Results:
    factors, pivots, _ = lu_factor(a, pivot)
    return _unpacked(factors, pivots)


def _unpacked(factors: UOp, pivots: UOp, data: bool = True, order: bool = True) -> Results:
    batch, m, n = _sizes(factors)
    count = min(m, n)
    empty = full((0,), 0, factors.dtype)
    rows, columns = arange(m).reshape((m, 1)), arange(n)
    zero = full((), 0, factors.dtype)
    lower, upper = empty, empty
    if data:
        below = (columns < rows).where(factors, zero)
        unit = columns.eq(rows).where(full((), 1, factors.dtype), below)
        lower = cut(unit, unit.ndim - 1, 0, count)
        above = (columns < rows).where(zero, factors)
        upper = cut(above, above.ndim - 2, 0, count)
    if not order:
        return empty, lower, upper
    if 0 in (*batch, m):
        return full((*batch, m, m), 0, factors.dtype), lower, upper
    if count == 0:
        return _identity(batch, m, m, factors.dtype), lower, upper
    (places,) = _run("permutation", (m, count), batch, [(dtypes.int32, m)], [pivots])
    row_of = places.reshape((*batch, 1, m))
    permuted = row_of.eq(arange(m).reshape((m, 1)))
    return cast(permuted, factors.dtype), lower, upper


def _lu_factor(a: UOp, pivot: bool, _check: bool) -> Results:
    return lu_factor(a, pivot)


# --- pieces ---


def _run(
    name: str, numbers: Sequence[int], batch: tuple[int, ...],
    results: Sequence[tuple[DType, int]], given: Sequence[UOp],
) -> list[UOp]:  # fmt: skip
    if any(x.dtype not in (*_TYPES, dtypes.int32) for x in given):
        raise NoLowering("factorizations are of float32 and float64")
    return run(name, [int(v) for v in numbers], math.prod(batch), results, given)


def _sizes(a: UOp) -> tuple[tuple[int, ...], int, int]:
    if a.dtype not in _TYPES:
        raise NoLowering("factorizations are of float32 and float64")
    *batch, m, n = int_shape(a)
    return tuple(batch), m, n


def _batch(a: UOp, b: UOp) -> tuple[int, ...]:
    shapes = [int_shape(x)[:-2] for x in (a, b)]
    ndim = max(len(s) for s in shapes)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


def _by_columns(flat: UOp, batch: tuple[int, ...], m: int, n: int) -> UOp:
    return flat.reshape((*batch, n, m)).transpose(-1, -2)


def _identity(batch: tuple[int, ...], m: int, n: int, dtype: DType) -> UOp:
    eye = arange(m).reshape((m, 1)).eq(arange(n)) if m and n else full((m, n), 0, dtype)
    return cast(eye, dtype).reshape((*(1 for _ in batch), m, n)).expand((*batch, m, n))


def _diagonal(a: UOp) -> UOp:
    *batch, m, n = int_shape(a)
    if 0 in a.shape:
        return full((*batch, min(m, n)), 0, a.dtype)
    mask = arange(m).reshape((m, 1)).eq(arange(n))
    picked = mask.where(a, full((), 0, a.dtype)).sum((a.ndim - 1,), dtype=a.dtype)
    return cut(picked, picked.ndim - 1, 0, min(m, n))


def _sign(pivots: UOp, dtype: DType) -> UOp:
    """-1 for an odd number of swaps."""
    n = int_shape(pivots)[-1]
    swaps = total(pivots.ne(arange(n) + 1).cast(dtypes.int32), (pivots.ndim - 1,))
    odd = (swaps % 2).ne(0)
    return odd.where(full((), -1, dtype), full((), 1, dtype))


TABLE: dict[str, Rule] = {
    "linalg_cholesky_ex": lambda a, upper, _check: cholesky(a, upper),
    "cholesky": lambda a, upper: cholesky(a, upper)[0],
    "linalg_lu_factor_ex": _lu_factor,
    "linalg_lu": _lu,
    "lu_unpack": _unpacked,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": lambda a, b, upper, left, unit: solve_triangular(
        a, b, upper, left, unit
    ),
    "triangular_solve": _triangular_solve,
    "linalg_inv_ex": _inverse,
    "_linalg_solve_ex": _solve,
    "_linalg_det": _det,
    "_linalg_slogdet": _slogdet,
    **dict.fromkeys(("cholesky_solve", "_cholesky_solve_helper"), cholesky_solve),
    "cholesky_inverse": _cholesky_inverse,
}
