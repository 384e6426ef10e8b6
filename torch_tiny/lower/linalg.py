"""Factorizations and what is solved with them, by the kernels of torch_tiny.linalg."""

import math
from collections.abc import Sequence

from torch_tiny.linalg.routine import run
from torch_tiny.lower.conditions import require
from torch_tiny.lower.index import gathered
from torch_tiny.lower.layout import is_contiguous
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.promote import Lifted, NoLowering, cast
from torch_tiny.lower.reduce import product
from torch_tiny.lower.sort import sort
from torch_tiny.lower.tools import Results, Rule, arange, cut, full, pad, total
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import int_shape

_TYPES = (dtypes.float32, dtypes.float64)


def is_for_libraries(shape: tuple[int, ...]) -> bool:
    """Whether LAPACK and cuSOLVER are sure to be better at a batch of matrices."""
    return len(shape) < 3 or math.prod(shape[:-2]) < 8 or max(shape[-2:]) > 128


def cholesky(a: UOp, upper: bool) -> tuple[UOp, UOp]:
    """The factor and info."""
    batch, n, _ = _sizes(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    if n > _BLOCK:
        if upper:
            factor, info = cholesky(a.transpose(-1, -2), False)
            return factor.transpose(-1, -2), info
        return _cholesky_by_halves(a)
    factor, info = _run("cholesky", (n, upper), batch, [(a.dtype, n * n), _INT], [a])
    return _by_columns(factor, batch, n, n), info.reshape(batch)


def _cholesky_by_halves(a: UOp) -> tuple[UOp, UOp]:
    """Products do most of the work: L21 = A21 L11^-T, and L22 is the factor of A22 - L21 L21^T."""
    n = int_shape(a)[-1]
    half = _half(n)
    first, info = cholesky(_part(a, (0, half), (0, half)), False)
    below = solve_triangular(
        first.transpose(-1, -2), _part(a, (half, n), (0, half)), True, False, False
    )
    rest = _part(a, (half, n), (half, n)) - matmul(below, below.transpose(-1, -2))
    second, later = cholesky(rest, False)
    info = _first_info(info, later, half)
    zero = full((*int_shape(a)[:-2], half, n - half), 0, a.dtype)
    return _joined([[first, zero], [below, second]]), info


def lu_factor(a: UOp, pivot: bool = True) -> tuple[UOp, UOp, UOp]:
    """L and U in one matrix, pivots from 1, info."""
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = _sizes(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    if count > _BLOCK:
        return _lu_by_halves(a)
    results = [(a.dtype, m * n), (dtypes.int32, count), _INT]
    factors, pivots, info = _run("lu", (m, n), batch, results, [a])
    return (
        _by_columns(factors, batch, m, n),
        pivots.reshape((*batch, count)),
        info.reshape(batch),
    )


_INT = (dtypes.int32, 1)


def _lu_by_halves(a: UOp) -> tuple[UOp, UOp, UOp]:
    """The left half, what its pivots and L make of the right one, and what is left of that."""
    _, m, n = _sizes(a)
    half = _half(min(m, n))
    left, pivots, info = lu_factor(_part(a, (0, m), (0, half)))
    right = _permuted(_part(a, (0, m), (half, n)), pivots)
    lower, below = _part(left, (0, half), (0, half)), _part(left, (half, m), (0, half))
    above = solve_triangular(lower, _part(right, (0, half), (0, n - half)), False, True, True)
    rest = _part(right, (half, m), (0, n - half)) - matmul(below, above)
    second, more, later = lu_factor(rest)
    return (
        _joined([[_part(left, (0, half), (0, half)), above], [_permuted(below, more), second]]),
        _side_by_side([pivots, more + half], -1),
        _first_info(info, later, half),
    )


def _solve(a: UOp, b: UOp, left: bool, _check: bool = False) -> tuple[UOp, UOp, UOp, UOp]:
    is_vector = _is_vector(a, b)
    right = b.unsqueeze(-1) if is_vector else b
    batch, n, _ = _sizes(a)
    is_plain = left and _batch(a, right) == batch and n <= _BLOCK
    if not is_plain or 0 in (*a.shape, *right.shape):
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, left, False)
        return x.squeeze(-1) if is_vector else x, factors, pivots, info
    columns = int_shape(right)[-1]
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
    if n > _BLOCK:
        factors, pivots, info = lu_factor(a)
        return lu_solve(factors, pivots, _identity(batch, n, n, a.dtype), True, False), info
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
    if n > _BLOCK:
        return _lu_solve_by_halves(factors, pivots, b.expand((*batch, n, columns)), adjoint)
    by_columns = factors.transpose(-1, -2).expand((*batch, n, n))
    pivots = pivots.expand((*batch, n))
    b = b.expand((*batch, n, columns))
    given = [by_columns, pivots, b]
    (x,) = _run("lu_solve", (n, columns, adjoint), batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def _lu_solve_by_halves(factors: UOp, pivots: UOp, b: UOp, adjoint: bool) -> UOp:
    batch, n = int_shape(b)[:-2], int_shape(b)[-2]
    pivots = pivots.expand((*batch, n))
    if adjoint:
        turned = factors.transpose(-1, -2)
        y = solve_triangular(turned, b, False, True, False)
        return _permuted(solve_triangular(turned, y, True, True, True), pivots, back=True)
    y = solve_triangular(factors, _permuted(b, pivots), False, True, True)
    return solve_triangular(factors, y, True, True, False)


def solve_triangular(a: UOp, b: UOp, upper: bool, left: bool, unit: bool) -> UOp:
    if not left:
        solved = solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unit)
        return solved.transpose(-1, -2)
    batch, n, columns = _batch(a, b), int_shape(a)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    if n > _BLOCK:
        return _triangular_by_halves(a, b, upper, unit)
    given = [a.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper, unit)
    (x,) = _run("triangular_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def _triangular_by_halves(a: UOp, b: UOp, upper: bool, unit: bool) -> UOp:
    n, columns = int_shape(b)[-2:]
    half = _half(n)
    parts = [(0, half), (half, n)]
    first, second = parts[::-1] if upper else parts
    every = (0, columns)
    x = solve_triangular(_part(a, first, first), _part(b, first, every), upper, True, unit)
    rest = _part(b, second, every) - matmul(_part(a, second, first), x)
    y = solve_triangular(_part(a, second, second), rest, upper, True, unit)
    return _side_by_side([y, x] if upper else [x, y], -2)


def _triangular_solve(b: UOp, a: UOp, upper: bool, transpose: bool, unit: bool) -> Results:
    if transpose:
        return solve_triangular(a.transpose(-1, -2), b, not upper, True, unit), a
    return solve_triangular(a, b, upper, True, unit), a


def cholesky_solve(b: UOp, factor: UOp, upper: bool) -> UOp:
    batch, n, columns = _batch(factor, b), int_shape(factor)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    if n > _BLOCK:
        lower = factor.transpose(-1, -2) if upper else factor
        y = solve_triangular(lower, b, False, True, False)
        return solve_triangular(lower.transpose(-1, -2), y, True, True, False)
    given = [factor.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper)
    (x,) = _run("cholesky_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return _by_columns(x, batch, n, columns)


def _cholesky_inverse(factor: UOp, upper: bool) -> UOp:
    batch, n, _ = _sizes(factor)
    return cholesky_solve(_identity(batch, n, n, factor.dtype), factor, upper)


def _as_lapack_takes_it(a: UOp) -> UOp:
    """Without a copy. PyTorch's derivatives know which one was factored."""
    return a.transpose(-1, -2) if is_contiguous() else a


def _det(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a))
    return product(_diagonal(factors), -1) * _sign(pivots, a.dtype), factors, pivots


def _slogdet(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a))
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
    row_of = _order(pivots, m).reshape((*batch, 1, m))
    permuted = row_of.eq(arange(m).reshape((m, 1)))
    return cast(permuted, factors.dtype), lower, upper


def _lu_factor(a: UOp, pivot: bool, _check: bool) -> Results:
    return lu_factor(a, pivot)


# --- orthogonal factors ---


def geqrf(a: UOp) -> tuple[UOp, UOp]:
    """R and the reflections in one matrix, and their factors."""
    batch, m, n = _sizes(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, a.dtype)
    packed, factors = _run("geqrf", (m, n), batch, [(a.dtype, m * n), (a.dtype, count)], [a])
    return _by_columns(packed, batch, m, n), factors.reshape((*batch, count))


def reflected(packed: UOp, factors: UOp, x: UOp | None, columns: int, forward: bool) -> UOp:
    """Q X or Q^T X; the first columns of Q without an X."""
    batch, m, _ = _sizes(packed)
    count = int_shape(factors)[-1]
    if 0 in (*batch, m, columns, count):
        return _identity(batch, m, columns, packed.dtype) if x is None else x
    used = cut(packed, packed.ndim - 1, 0, count).transpose(-1, -2)
    given = [used, factors] if x is None else [used, factors, x]
    numbers = (m, count, columns, forward, x is not None)
    (result,) = _run("reflect", numbers, batch, [(packed.dtype, m * columns)], given)
    return _by_columns(result, batch, m, columns)


def qr(a: UOp, mode: str) -> tuple[UOp, UOp]:
    _, m, n = _sizes(a)
    packed, factors = geqrf(a)
    rows = m if mode == "complete" else min(m, n)
    zero = full((), 0, a.dtype)
    above = (arange(n) < arange(m).reshape((m, 1))).where(zero, packed) if m and n else packed
    r = cut(above, above.ndim - 2, 0, rows)
    if mode == "r":
        return full((0,), 0, a.dtype), r
    return reflected(packed, factors, None, rows, False), r


def _ormqr(packed: UOp, factors: UOp, x: UOp, left: bool, transpose: bool) -> UOp:
    if not left:
        solved = _ormqr(packed, factors, x.transpose(-1, -2), True, not transpose)
        return solved.transpose(-1, -2)
    return reflected(packed, factors, x, int_shape(x)[-1], transpose)


def eigh(a: UOp, triangle: str, vectors: bool) -> Results:
    batch, n, _ = _sizes(a)
    if 0 in a.shape:
        return full((*batch, n), 0, a.dtype), a if vectors else full((0,), 0, a.dtype)
    require(_is_finite(a))
    square = (a.dtype, n * n)
    results = [(a.dtype, n), square, *([square, square] if vectors else [])]
    lower = triangle.upper() == "L"
    values, _, *rest = _run("eigh", (n, lower, vectors), batch, results, [a])
    found = _by_columns(rest[0], batch, n, n) if vectors else full((0,), 0, a.dtype)
    return values.reshape((*batch, n)), found


def svd(a: UOp, full_matrices: bool, vectors: bool, _driver: str | None = None) -> Results:
    batch, m, n = _sizes(a)
    if m < n:
        vh, values, uh = svd(a.transpose(-1, -2), full_matrices, vectors)
        if not vectors:
            return vh, values, uh
        assert vh is not None and uh is not None
        return uh.transpose(-1, -2), values, vh.transpose(-1, -2)
    nothing = full((0,), 0, a.dtype)
    columns = m if full_matrices else n
    if 0 in a.shape:
        values = full((*batch, n), 0, a.dtype)
        u = _identity(batch, m, columns, a.dtype)
        return (
            (u, values, _identity(batch, n, n, a.dtype)) if vectors else (nothing, values, nothing)
        )
    require(_is_finite(a))
    tall, square = (a.dtype, m * n), (a.dtype, n * n)
    results = [(a.dtype, n), tall, *([tall, square, square] if vectors else [])]
    values, _, *rest = _run("svd", (m, n, vectors), batch, results, [a])
    values = values.reshape((*batch, n))
    if not vectors:
        return nothing, values, nothing
    # Columns of U S are orthogonal but may be zero: Q completes them, up to a sign.
    packed, factors = geqrf(_by_columns(rest[0], batch, m, n))
    q = reflected(packed, factors, None, columns, False)
    one = full((), 1, a.dtype)
    signs = (_diagonal(packed) < 0).where(-one, one).unsqueeze(-2)
    if columns > n:
        signs = pad(signs, [*((0, 0) for _ in batch), (0, 0), (0, columns - n)], 1)
    return q * signs, values, _by_columns(rest[1], batch, n, n).transpose(-1, -2)


def _lstsq(a: UOp, b: UOp, rcond: float | None, driver: str | None) -> Results:
    """The shortest of the best solutions, and the rank, as by LAPACK's gelsy."""
    if driver not in (None, "gelsy") or isinstance(rcond, Lifted):
        raise NoLowering("other drivers tell more")
    batch, m, n = _sizes(a)
    is_vector = _is_vector(a, b)
    right = b.unsqueeze(-1) if is_vector else b
    if 0 in (*a.shape, *right.shape) or _batch(a, right) != batch:
        raise NoLowering("nothing to solve, or batches that differ")
    u, s, vh = svd(a, False, True)
    assert u is not None and s is not None and vh is not None
    if rcond is None:
        rcond = {dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}[a.dtype] * max(m, n)
    counts = s > s.max((s.ndim - 1,), keepdim=True) * rcond
    inverse = counts.where(1 / counts.where(s, full((), 1, a.dtype)), full((), 0, a.dtype))
    x = matmul(vh.transpose(-1, -2), matmul(u.transpose(-1, -2), right) * inverse.unsqueeze(-1))
    rank = total(counts.cast(dtypes.int64), (counts.ndim - 1,))
    nothing = full((0,), 0, a.dtype)
    return x.squeeze(-1) if is_vector else x, nothing, rank, nothing


def _exponential(a: UOp) -> UOp:
    batch, n, _ = _sizes(a)
    if 0 in a.shape:
        return a
    square = (a.dtype, n * n)
    result, *_ = _run("exponential", (n,), batch, [square, square, square], [a])
    return _by_columns(result, batch, n, n)


# --- pieces ---


# Larger matrices are halved until they are no larger: a kernel for each piece, the rest products.
_BLOCK = 128


def _half(n: int) -> int:
    """So that equal pieces come up again and again: they share their kernels."""
    return -(-n // 2 // 64) * 64


def _part(x: UOp, rows: tuple[int, int], columns: tuple[int, int]) -> UOp:
    return x.shrink((*(None for _ in x.shape[:-2]), rows, columns))


def _side_by_side(parts: Sequence[UOp], dim: int) -> UOp:
    return parts[0].cat(*parts[1:], dim=dim)


def _joined(blocks: Sequence[Sequence[UOp]]) -> UOp:
    return _side_by_side([_side_by_side(row, -1) for row in blocks], -2)


def _first_info(info: UOp, later: UOp, after: int) -> UOp:
    return info.ne(0).where(info, later.ne(0).where(later + after, later))


def _order(pivots: UOp, m: int) -> UOp:
    """Which row of A is row i of the permuted matrix."""
    *batch, count = int_shape(pivots)
    (places,) = _run("permutation", (m, count), tuple(batch), [(dtypes.int32, m)], [pivots])
    return places.reshape((*batch, m))


def _permuted(x: UOp, pivots: UOp, back: bool = False) -> UOp:
    """The rows of x swapped as the pivots say, or swapped back."""
    m = int_shape(x)[-2]
    order = _order(pivots, m)
    if back:
        order = sort(order, -1, False)[1].cast(dtypes.int32)
    return gathered(x, x.ndim - 2, order.unsqueeze(-1).expand(int_shape(x)))


def _is_finite(a: UOp) -> UOp:
    return (a * 0.0).eq(0)


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
    "geqrf": geqrf,
    "linalg_qr": qr,
    **dict.fromkeys(
        ("linalg_householder_product", "orgqr"),
        lambda packed, factors: reflected(packed, factors, None, int_shape(packed)[-1], False),
    ),
    "ormqr": _ormqr,
    "_linalg_eigh": eigh,
    "_linalg_svd": svd,
    "linalg_lstsq": _lstsq,
    "linalg_matrix_exp": _exponential,
}
