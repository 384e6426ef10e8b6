"""Factorizations and what is solved with them, by the kernels of torch_tiny.linalg."""

import math

from torch_tiny.lower.conditions import require
from torch_tiny.lower.layout import is_contiguous
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.matrices import (
    BLOCK,
    INT,
    PANEL,
    by_columns,
    checked,
    common_batch,
    diagonal_of,
    first_info,
    half_of,
    identity,
    joined,
    part_of,
    row_order,
    rows_permuted,
    run_on,
    side_by_side,
    sign_of,
    sizes_of,
)
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.reduce import product
from torch_tiny.lower.tools import Results, Rule, arange, cut, full, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape


def is_for_libraries(shape: tuple[int, ...]) -> bool:
    """Whether LAPACK and cuSOLVER are sure to be better at a batch of matrices."""
    return len(shape) < 3 or math.prod(shape[:-2]) < 8 or max(shape[-2:]) > 128


def cholesky(a: UOp, upper: bool) -> tuple[UOp, UOp]:
    """The factor and info."""
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    if n > BLOCK:
        if upper:
            factor, info = cholesky(a.transpose(-1, -2), False)
            return factor.transpose(-1, -2), info
        return _cholesky_by_halves(a)
    factor, info = run_on("cholesky", (n, upper), batch, [(a.dtype, n * n), INT], [a])
    return by_columns(factor, batch, n, n), info.reshape(batch)


def _cholesky_by_halves(a: UOp) -> tuple[UOp, UOp]:
    """Products do most of the work: L21 = A21 L11^-T, and L22 is the factor of A22 - L21 L21^T."""
    n = int_shape(a)[-1]
    half = half_of(n)
    first, info = cholesky(part_of(a, (0, half), (0, half)), False)
    below = solve_triangular(
        first.transpose(-1, -2), part_of(a, (half, n), (0, half)), True, False, False
    )
    rest = part_of(a, (half, n), (half, n)) - matmul(below, below.transpose(-1, -2))
    second, later = cholesky(rest, False)
    info = first_info(info, later, half)
    zero = full((*int_shape(a)[:-2], half, n - half), 0, a.dtype)
    return joined([[first, zero], [below, second]]), info


def lu_factor(a: UOp, pivot: bool = True) -> tuple[UOp, UOp, UOp]:
    """L and U in one matrix, pivots from 1, info."""
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = sizes_of(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    if count > BLOCK:
        return _lu_by_halves(a)
    results = [(a.dtype, m * n), (dtypes.int32, count), INT]
    factors, pivots, info = run_on("lu", (m, n), batch, results, [a])
    return (
        by_columns(factors, batch, m, n),
        pivots.reshape((*batch, count)),
        info.reshape(batch),
    )


def _lu_by_halves(a: UOp) -> tuple[UOp, UOp, UOp]:
    """The left half, what its pivots and L make of the right one, and what is left of that."""
    _, m, n = sizes_of(a)
    half = half_of(min(m, n))
    left, pivots, info = lu_factor(part_of(a, (0, m), (0, half)))
    right = rows_permuted(part_of(a, (0, m), (half, n)), pivots)
    lower, below = part_of(left, (0, half), (0, half)), part_of(left, (half, m), (0, half))
    above = solve_triangular(lower, part_of(right, (0, half), (0, n - half)), False, True, True)
    rest = part_of(right, (half, m), (0, n - half)) - matmul(below, above)
    second, more, later = lu_factor(rest)
    return (
        joined(
            [[part_of(left, (0, half), (0, half)), above], [rows_permuted(below, more), second]]
        ),
        side_by_side([pivots, more + half], -1),
        first_info(info, later, half),
    )


def _solve(a: UOp, b: UOp, left: bool) -> tuple[UOp, UOp, UOp, UOp]:
    vector = is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    batch, n, _ = sizes_of(a)
    is_plain = left and common_batch(a, right) == batch and n <= BLOCK
    if not is_plain or 0 in (*a.shape, *right.shape):
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, left, False)
        return x.squeeze(-1) if vector else x, factors, pivots, info
    columns = int_shape(right)[-1]
    right = right.expand((*batch, n, columns))
    results = [(a.dtype, n * columns), (a.dtype, n * n), (dtypes.int32, n), INT]
    x, factors, pivots, info = run_on("solve", (n, columns), batch, results, [a, right])
    x = by_columns(x, batch, n, columns)
    return (
        x.squeeze(-1) if vector else x,
        by_columns(factors, batch, n, n),
        pivots.reshape((*batch, n)),
        info.reshape(batch),
    )


def is_vector(a: UOp, b: UOp) -> bool:
    """As linalg.solve tells a batch of vectors from a matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and int_shape(a)[:-1] == int_shape(b))


def _inverse(a: UOp) -> tuple[UOp, UOp]:
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    if n > BLOCK:
        factors, pivots, info = lu_factor(a)
        return lu_solve(factors, pivots, identity(batch, n, n, a.dtype), True, False), info
    results = [(a.dtype, n * n), (a.dtype, n * n), (dtypes.int32, n), INT]
    x, _, _, info = run_on("solve", (n, 0), batch, results, [a])
    return by_columns(x, batch, n, n), info.reshape(batch)


def lu_solve(factors: UOp, pivots: UOp, b: UOp, left: bool, adjoint: bool) -> UOp:
    if not left:
        solved = lu_solve(factors, pivots, b.transpose(-1, -2), True, not adjoint)
        return solved.transpose(-1, -2)
    _, n, _ = sizes_of(factors)
    columns = int_shape(b)[-1]
    batch = common_batch(factors, b)
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    if n > BLOCK:
        return _lu_solve_by_halves(factors, pivots, b.expand((*batch, n, columns)), adjoint)
    columnwise = factors.transpose(-1, -2).expand((*batch, n, n))
    pivots = pivots.expand((*batch, n))
    b = b.expand((*batch, n, columns))
    given = [columnwise, pivots, b]
    (x,) = run_on("lu_solve", (n, columns, adjoint), batch, [(b.dtype, n * columns)], given)
    return by_columns(x, batch, n, columns)


def _lu_solve_by_halves(factors: UOp, pivots: UOp, b: UOp, adjoint: bool) -> UOp:
    batch, n = int_shape(b)[:-2], int_shape(b)[-2]
    pivots = pivots.expand((*batch, n))
    if adjoint:
        turned = factors.transpose(-1, -2)
        y = solve_triangular(turned, b, False, True, False)
        return rows_permuted(solve_triangular(turned, y, True, True, True), pivots, back=True)
    y = solve_triangular(factors, rows_permuted(b, pivots), False, True, True)
    return solve_triangular(factors, y, True, True, False)


def solve_triangular(a: UOp, b: UOp, upper: bool, left: bool, unit: bool) -> UOp:
    if not left:
        solved = solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unit)
        return solved.transpose(-1, -2)
    batch, n, columns = common_batch(a, b), int_shape(a)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    if n > BLOCK:
        return _triangular_by_halves(a, b, upper, unit)
    given = [a.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper, unit)
    (x,) = run_on("triangular_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return by_columns(x, batch, n, columns)


def _triangular_by_halves(a: UOp, b: UOp, upper: bool, unit: bool) -> UOp:
    n, columns = int_shape(b)[-2:]
    half = half_of(n)
    parts = [(0, half), (half, n)]
    first, second = parts[::-1] if upper else parts
    every = (0, columns)
    x = solve_triangular(part_of(a, first, first), part_of(b, first, every), upper, True, unit)
    rest = part_of(b, second, every) - matmul(part_of(a, second, first), x)
    y = solve_triangular(part_of(a, second, second), rest, upper, True, unit)
    return side_by_side([y, x] if upper else [x, y], -2)


def _triangular_solve(b: UOp, a: UOp, upper: bool, transpose: bool, unit: bool) -> Results:
    if transpose:
        return solve_triangular(a.transpose(-1, -2), b, not upper, True, unit), a
    return solve_triangular(a, b, upper, True, unit), a


def cholesky_solve(b: UOp, factor: UOp, upper: bool) -> UOp:
    batch, n, columns = common_batch(factor, b), int_shape(factor)[-1], int_shape(b)[-1]
    if 0 in (*batch, n, columns):
        return full((*batch, n, columns), 0, b.dtype)
    if n > BLOCK:
        lower = factor.transpose(-1, -2) if upper else factor
        y = solve_triangular(lower, b, False, True, False)
        return solve_triangular(lower.transpose(-1, -2), y, True, True, False)
    given = [factor.expand((*batch, n, n)), b.expand((*batch, n, columns))]
    numbers = (n, columns, upper)
    (x,) = run_on("cholesky_solve", numbers, batch, [(b.dtype, n * columns)], given)
    return by_columns(x, batch, n, columns)


def _cholesky_inverse(factor: UOp, upper: bool) -> UOp:
    batch, n, _ = sizes_of(factor)
    require(diagonal_of(factor).ne(0))
    return cholesky_solve(identity(batch, n, n, factor.dtype), factor, upper)


def _as_lapack_takes_it(a: UOp) -> UOp:
    """Without a copy. PyTorch's derivatives know which one was factored."""
    return a.transpose(-1, -2) if is_contiguous() else a


def _det(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a))
    return product(diagonal_of(factors), -1) * sign_of(pivots, a.dtype), factors, pivots


def _slogdet(a: UOp) -> Results:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a))
    diagonal = diagonal_of(factors)
    one = full(int_shape(diagonal), 1, a.dtype)
    signs = (diagonal < 0).where(-one, (diagonal > 0).where(one, full((), 0, a.dtype)))
    sign = product(signs, -1) * sign_of(pivots, a.dtype)
    size = call("log", call("fabs", diagonal)) if 0 not in a.shape else diagonal
    return sign, total(size, (size.ndim - 1,)), factors, pivots


def _lu(a: UOp, pivot: bool) -> Results:
    factors, pivots, _ = lu_factor(a, pivot)
    return unpacked(factors, pivots)


def unpacked(factors: UOp, pivots: UOp, data: bool = True, order: bool = True) -> Results:
    batch, m, n = sizes_of(factors)
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
        return identity(batch, m, m, factors.dtype), lower, upper
    row_of = row_order(pivots, m).reshape((*batch, 1, m))
    permuted = row_of.eq(arange(m).reshape((m, 1)))
    return cast(permuted, factors.dtype), lower, upper


# --- orthogonal factors ---


def geqrf(a: UOp) -> tuple[UOp, UOp]:
    """R and the reflections in one matrix, and their factors."""
    batch, m, n = sizes_of(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, a.dtype)
    if count > PANEL:
        return _geqrf_by_halves(a)
    packed, factors = run_on("geqrf", (m, n), batch, [(a.dtype, m * n), (a.dtype, count)], [a])
    return by_columns(packed, batch, m, n), factors.reshape((*batch, count))


def reflected(packed: UOp, factors: UOp, x: UOp | None, columns: int, forward: bool) -> UOp:
    """Q X or Q^T X; the first columns of Q without an X."""
    batch, m, _ = sizes_of(packed)
    count = int_shape(factors)[-1]
    if 0 in (*batch, m, columns, count):
        return identity(batch, m, columns, packed.dtype) if x is None else x
    if max(count, m, columns) > PANEL:
        start = identity(batch, m, columns, packed.dtype) if x is None else x
        return _reflected_in_blocks(packed, factors, start, forward)
    used = cut(packed, packed.ndim - 1, 0, count).transpose(-1, -2)
    given = [used, factors] if x is None else [used, factors, x]
    numbers = (m, count, columns, forward, x is not None)
    (result,) = run_on("reflect", numbers, batch, [(packed.dtype, m * columns)], given)
    return by_columns(result, batch, m, columns)


def _geqrf_by_halves(a: UOp) -> tuple[UOp, UOp]:
    """The left half, what its reflections make of the right one, and the rest of that."""
    _, m, n = sizes_of(a)
    half = half_of(min(m, n))
    left, first = geqrf(part_of(a, (0, m), (0, half)))
    right = _reflected_in_blocks(left, first, part_of(a, (0, m), (half, n)), True)
    rest, second = geqrf(part_of(right, (half, m), (0, n - half)))
    below = side_by_side([part_of(right, (0, half), (0, n - half)), rest], -2)
    return side_by_side([left, below], -1), side_by_side([first, second], -1)


def _reflected_in_blocks(packed: UOp, factors: UOp, x: UOp, forward: bool) -> UOp:
    """Products do the work: a block of reflections is I - V S^-1 V^T, with a triangular S."""
    count = int_shape(factors)[-1]
    starts = range(0, count, BLOCK)
    for start in starts if forward else reversed(starts):
        end = min(start + BLOCK, count)
        v, s = _block_of(packed, factors, start, end)
        inside = matmul(v.transpose(-1, -2), x)
        turned = s.transpose(-1, -2) if forward else s
        x = x - matmul(v, solve_triangular(turned, inside, not forward, True, False))
    return x


def _block_of(packed: UOp, factors: UOp, start: int, end: int) -> tuple[UOp, UOp]:
    """V and S: above its diagonal V^T V, on it the inverse factors; Puglisi's compact WY."""
    m, one = int_shape(packed)[-2], full((), 1, packed.dtype)
    tau = cut(factors, factors.ndim - 1, start, end).unsqueeze(-2)
    acts = tau.ne(0)  # what does not is left out
    rows, columns = arange(m).reshape((m, 1)), arange(end - start) + start
    zero = full((), 0, packed.dtype)
    below = (columns < rows).where(part_of(packed, (0, m), (start, end)), zero)
    v = acts.where(columns.eq(rows).where(one, below), zero).contiguous()
    places = arange(end - start)
    is_diagonal = places.eq(places.reshape((-1, 1)))
    inverse = 1 / acts.where(tau, one)
    return v, is_diagonal.where(inverse, matmul(v.transpose(-1, -2), v))


def qr(a: UOp, mode: str) -> tuple[UOp, UOp]:
    _, m, n = sizes_of(a)
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


def _exponential(a: UOp) -> UOp:
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return a
    square = (a.dtype, n * n)
    result, *_ = run_on("exponential", (n,), batch, [square] * 5, [a])
    return by_columns(result, batch, n, n)


TABLE: dict[str, Rule] = {
    "linalg_cholesky_ex": checked(cholesky),
    "cholesky": lambda a, upper: cholesky(a, upper)[0],
    "linalg_lu_factor_ex": checked(lu_factor),
    "linalg_lu": _lu,
    "lu_unpack": unpacked,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": lambda a, b, upper, left, unit: solve_triangular(
        a, b, upper, left, unit
    ),
    "triangular_solve": _triangular_solve,
    "linalg_inv_ex": checked(_inverse),
    "_linalg_solve_ex": checked(_solve),
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
    "linalg_matrix_exp": _exponential,
}
