"""Factorizations and what is solved with them, by the kernels of torch_tiny.linalg.

One text for real and for complex matrices (matrices.py).
"""

import math

from torch_tiny.lower.arithmetic import log
from torch_tiny.lower.complex_value import Complex
from torch_tiny.lower.conditions import require
from torch_tiny.lower.matrices import (
    BLOCK,
    INT,
    PANEL,
    V,
    adjoint,
    below_diagonal,
    by_columns,
    by_rows,
    checked,
    common_batch,
    diagonal_of,
    each,
    either,
    filled_like,
    first_info,
    half_of,
    identity,
    is_large,
    joined,
    like,
    magnitude,
    multiplied,
    part_of,
    phase,
    product_of,
    real,
    room,
    row_order,
    rows_permuted,
    run_on,
    shape_of,
    side_by_side,
    sign_of,
    sized,
    sizes_of,
    upper_part,
)
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.rule import Function, Rule, Shapes, Table
from torch_tiny.lower.shapes import arange, cut, full, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import ViewSpec


def is_for_libraries(shapes: Shapes) -> bool:
    """Whether LAPACK and cuSOLVER are sure to be better at a batch of matrices."""
    shape = shapes[0] if shapes else ()
    return len(shape) < 3 or math.prod(shape[:-2]) < 8 or max(shape[-2:]) > 128


def cholesky(a: V, upper: bool) -> tuple[V, UOp]:
    """The factor and info."""
    batch, n, _ = sizes_of(a)
    if 0 in shape_of(a):
        return a, full(batch, 0, dtypes.int32)
    if is_large(a, n):
        if upper:
            factor, info = cholesky(adjoint(a), False)
            return adjoint(factor), info
        return _cholesky_by_halves(a)
    found, info = run_on("cholesky", (n, upper), batch, [room(a, n * n), INT], [a])
    return by_columns(found, a, batch, n, n), info.reshape(batch)


def _cholesky_by_halves(a: V) -> tuple[V, UOp]:
    """Products do most of the work: L21 = A21 L11^-H, and L22 is the factor of A22 - L21 L21^H."""
    batch, n, _ = sizes_of(a)
    half = half_of(n)
    first, info = cholesky(part_of(a, (0, half), (0, half)), False)
    below = solve_triangular(adjoint(first), part_of(a, (half, n), (0, half)), True, False, False)
    rest = part_of(a, (half, n), (half, n)) - multiplied(below, adjoint(below))
    second, later = cholesky(rest, False)
    info = first_info(info, later, half)
    zero = filled_like(a, sized(batch, half, n - half), 0)
    return joined([[first, zero], [below, second]]), info


def lu_factor(a: V, pivot: bool = True) -> tuple[V, UOp, UOp]:
    """L and U in one matrix, pivots from 1, info."""
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = sizes_of(a)
    count = min(m, n)
    if 0 in shape_of(a):
        return a, full(sized(batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    if is_large(a, count):
        return _lu_by_halves(a)
    results = [room(a, m * n), (dtypes.int32, count), INT]
    factors, pivots, info = run_on("lu", (m, n), batch, results, [a])
    return (
        by_columns(factors, a, batch, m, n),
        pivots.reshape(sized(batch, count)),
        info.reshape(batch),
    )


def _lu_by_halves(a: V) -> tuple[V, UOp, UOp]:
    """The left half, what its pivots and L make of the right one, and what is left of that."""
    _, m, n = sizes_of(a)
    half = half_of(min(m, n))
    left, pivots, info = lu_factor(part_of(a, (0, m), (0, half)))
    right = rows_permuted(part_of(a, (0, m), (half, n)), pivots)
    lower, below = part_of(left, (0, half), (0, half)), part_of(left, (half, m), (0, half))
    above = solve_triangular(lower, part_of(right, (0, half), (0, n - half)), False, True, True)
    rest = part_of(right, (half, m), (0, n - half)) - multiplied(below, above)
    second, more, later = lu_factor(rest)
    return (
        joined([[lower, above], [rows_permuted(below, more), second]]),
        side_by_side([pivots, more + half], -1),
        first_info(info, later, half),
    )


def _solve(a: V, b: V, left: bool) -> tuple[V, V, UOp, UOp]:
    vector = is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    batch, n, _ = sizes_of(a)
    is_plain = left and common_batch(a, right) == batch and not is_large(a, n)
    if not is_plain or 0 in shape_of(a) + shape_of(right):
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, left, False)
        return x.squeeze(-1) if vector else x, factors, pivots, info
    columns = shape_of(right)[-1]
    right = right.expand(sized(batch, n, columns))
    results = [room(a, n * columns), room(a, n * n), (dtypes.int32, n), INT]
    solved, packed, pivots, info = run_on("solve", (n, columns), batch, results, [a, right])
    x = by_columns(solved, a, batch, n, columns)
    return (
        x.squeeze(-1) if vector else x,
        by_columns(packed, a, batch, n, n),
        pivots.reshape(sized(batch, n)),
        info.reshape(batch),
    )


def is_vector(a: V, b: V) -> bool:
    """As linalg.solve tells a batch of vectors from a matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and shape_of(a)[:-1] == shape_of(b))


def _inverse(a: V) -> tuple[V, UOp]:
    batch, n, _ = sizes_of(a)
    if 0 in shape_of(a):
        return a, full(batch, 0, dtypes.int32)
    if is_large(a, n):
        factors, pivots, info = lu_factor(a)
        return lu_solve(factors, pivots, identity(batch, n, n, a), True, False), info
    results = [room(a, n * n), room(a, n * n), (dtypes.int32, n), INT]
    x, _, _, info = run_on("solve", (n, 0), batch, results, [a])
    return by_columns(x, a, batch, n, n), info.reshape(batch)


def lu_solve(factors: V, pivots: UOp, b: V, left: bool, is_adjoint: bool) -> V:
    if not left:
        return adjoint(lu_solve(factors, pivots, adjoint(b), True, not is_adjoint))
    batch, n, columns = common_batch(factors, b), shape_of(factors)[-1], shape_of(b)[-1]
    if 0 in sized(batch, n, columns):
        return filled_like(b, sized(batch, n, columns), 0)
    b, pivots = b.expand(sized(batch, n, columns)), pivots.expand(sized(batch, n))
    if is_large(factors, n):
        return _lu_solve_by_halves(factors, pivots, b, is_adjoint)
    # Its kernel takes the factors by columns.
    columnwise = factors.transpose(-1, -2).expand(sized(batch, n, n))
    numbers, results = (n, columns, is_adjoint), [room(b, n * columns)]
    (x,) = run_on("lu_solve", numbers, batch, results, [columnwise, pivots, b])
    return by_columns(x, b, batch, n, columns)


def _lu_solve_by_halves(factors: V, pivots: UOp, b: V, is_adjoint: bool) -> V:
    if is_adjoint:
        turned = adjoint(factors)
        y = solve_triangular(turned, b, False, True, False)
        return rows_permuted(solve_triangular(turned, y, True, True, True), pivots, back=True)
    y = solve_triangular(factors, rows_permuted(b, pivots), False, True, True)
    return solve_triangular(factors, y, True, True, False)


def solve_triangular(a: V, b: V, upper: bool, left: bool, unit: bool) -> V:
    if not left:
        solved = solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unit)
        return solved.transpose(-1, -2)
    batch, n, columns = common_batch(a, b), shape_of(a)[-1], shape_of(b)[-1]
    if 0 in sized(batch, n, columns):
        return filled_like(b, sized(batch, n, columns), 0)
    if is_large(a, n):
        return _triangular_by_halves(a, b, upper, unit)
    given = [a.expand(sized(batch, n, n)), b.expand(sized(batch, n, columns))]
    numbers = (n, columns, upper, unit)
    (x,) = run_on("triangular_solve", numbers, batch, [room(b, n * columns)], given)
    return by_columns(x, b, batch, n, columns)


def _triangular_by_halves(a: V, b: V, upper: bool, unit: bool) -> V:
    n, columns = shape_of(b)[-2:]
    half = half_of(n)
    parts = [(0, half), (half, n)]
    first, second = parts[::-1] if upper else parts
    every = (0, columns)
    x = solve_triangular(part_of(a, first, first), part_of(b, first, every), upper, True, unit)
    rest = part_of(b, second, every) - multiplied(part_of(a, second, first), x)
    y = solve_triangular(part_of(a, second, second), rest, upper, True, unit)
    return side_by_side([y, x] if upper else [x, y], -2)


def _triangular_solve(b: V, a: V, upper: bool, transpose: bool, unit: bool) -> tuple[V, V]:
    if transpose:
        return solve_triangular(a.transpose(-1, -2), b, not upper, True, unit), a
    return solve_triangular(a, b, upper, True, unit), a


def cholesky_solve(b: V, factor: V, upper: bool) -> V:
    batch, n, columns = common_batch(factor, b), shape_of(factor)[-1], shape_of(b)[-1]
    if 0 in sized(batch, n, columns):
        return filled_like(b, sized(batch, n, columns), 0)
    if is_large(factor, n):
        lower = adjoint(factor) if upper else factor
        y = solve_triangular(lower, b, False, True, False)
        return solve_triangular(adjoint(lower), y, True, True, False)
    given = [factor.expand(sized(batch, n, n)), b.expand(sized(batch, n, columns))]
    numbers = (n, columns, upper)
    (x,) = run_on("cholesky_solve", numbers, batch, [room(b, n * columns)], given)
    return by_columns(x, b, batch, n, columns)


def _cholesky_inverse(factor: V, upper: bool) -> V:
    batch, n, _ = sizes_of(factor)
    require(_differs(diagonal_of(factor)))
    return cholesky_solve(identity(batch, n, n, factor), factor, upper)


def _differs(a: V) -> UOp:
    """From 0."""
    return a.re.ne(0) | a.im.ne(0) if isinstance(a, Complex) else a.ne(0)


def _as_lapack_takes_it(a: V, layout: ViewSpec | None) -> V:
    """Real ones without a copy. PyTorch's derivatives know which one was factored."""
    plain = layout is None or layout.is_contiguous()
    return a if isinstance(a, Complex) or not plain else a.transpose(-1, -2)


def _det(a: V, layout: ViewSpec | None) -> tuple[V, V, UOp]:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a, layout))
    sign = sign_of(pivots, real(a).dtype)
    return product_of(diagonal_of(factors)) * sign, factors, pivots


def _slogdet(a: V, layout: ViewSpec | None) -> tuple[V, UOp, V, UOp]:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a, layout))
    diagonal = diagonal_of(factors)
    sign = product_of(phase(diagonal)) * sign_of(pivots, real(a).dtype)
    size = log(magnitude(diagonal)) if 0 not in shape_of(a) else real(diagonal)
    return sign, total(size, (size.ndim - 1,)), factors, pivots


def _lu(a: V, pivot: bool) -> tuple[V, V, V]:
    factors, pivots, _ = lu_factor(a, pivot)
    return _unpacked(factors, pivots)


def _unpacked(factors: V, pivots: UOp, data: bool = True, order: bool = True) -> tuple[V, V, V]:
    batch, m, n = sizes_of(factors)
    count = min(m, n)
    empty = filled_like(factors, (0,), 0)
    lower, upper = empty, empty
    if data:
        zero, one = (filled_like(factors, (), value) for value in (0, 1))
        is_below = below_diagonal(m, n)
        is_diagonal = arange(n).eq(arange(m).reshape((m, 1)))
        unit = either(is_diagonal, one, either(is_below, factors, zero))
        lower = part_of(unit, (0, m), (0, count))
        upper = part_of(either(is_below, zero, factors), (0, count), (0, n))
    if not order:
        return empty, lower, upper
    if 0 in sized(batch, m):
        return filled_like(factors, sized(batch, m, m), 0), lower, upper
    if count == 0:
        return identity(batch, m, m, factors), lower, upper
    row_of = row_order(pivots, m).reshape(sized(batch, 1, m))
    permuted = row_of.eq(arange(m).reshape((m, 1)))
    return like(factors, cast(permuted, real(factors).dtype)), lower, upper


# --- orthogonal factors ---


def geqrf(a: V) -> tuple[V, V]:
    """R and the reflections in one matrix, and their factors."""
    batch, m, n = sizes_of(a)
    count = min(m, n)
    if 0 in shape_of(a):
        return a, filled_like(a, sized(batch, count), 0)
    if is_large(a, count, PANEL):
        return _geqrf_by_halves(a)
    packed, factors = run_on("geqrf", (m, n), batch, [room(a, m * n), room(a, count)], [a])
    return by_columns(packed, a, batch, m, n), by_rows(factors, a, batch, count)


def reflected(packed: V, factors: V, x: V | None, columns: int, forward: bool) -> V:
    """Q X, or Q^H X if forward; the first columns of Q without an X."""
    batch, m, _ = sizes_of(packed)
    count = shape_of(factors)[-1]
    if 0 in sized(batch, m, columns, count):
        return identity(batch, m, columns, packed) if x is None else x
    if is_large(packed, max(count, m, columns), PANEL):
        start = identity(batch, m, columns, packed) if x is None else x
        return _reflected_in_blocks(packed, factors, start, forward)
    used = part_of(packed, (0, m), (0, count)).transpose(-1, -2)
    given = [used, factors] if x is None else [used, factors, x]
    numbers = (m, count, columns, forward, x is not None)
    (result,) = run_on("reflect", numbers, batch, [room(packed, m * columns)], given)
    return by_columns(result, packed, batch, m, columns)


def _geqrf_by_halves(a: V) -> tuple[V, V]:
    """The left half, what its reflections make of the right one, and the rest of that."""
    _, m, n = sizes_of(a)
    half = half_of(min(m, n))
    left, first = geqrf(part_of(a, (0, m), (0, half)))
    right = _reflected_in_blocks(left, first, part_of(a, (0, m), (half, n)), True)
    rest, second = geqrf(part_of(right, (half, m), (0, n - half)))
    below = side_by_side([part_of(right, (0, half), (0, n - half)), rest], -2)
    return side_by_side([left, below], -1), side_by_side([first, second], -1)


def _reflected_in_blocks(packed: V, factors: V, x: V, forward: bool) -> V:
    """Products do the work: a block of reflections is I - V S^-1 V^H, with a triangular S."""
    count = shape_of(factors)[-1]
    starts = range(0, count, BLOCK)
    for start in starts if forward else reversed(starts):
        v, s = _block_of(packed, factors, start, min(start + BLOCK, count))
        inside = multiplied(adjoint(v), x)
        turned = adjoint(s) if forward else s
        x = x - multiplied(v, solve_triangular(turned, inside, not forward, True, False))
    return x


def _block_of(packed: V, factors: V, start: int, end: int) -> tuple[V, V]:
    """V and S: above its diagonal V^H V, on it the inverse factors; Puglisi's compact WY."""
    m = shape_of(packed)[-2]
    zero, one = (filled_like(packed, (), value) for value in (0, 1))
    tau = each(factors, lambda part: cut(part, part.ndim - 1, start, end)).unsqueeze(-2)
    acts = _differs(tau)  # what does not is left out
    rows, columns = arange(m).reshape((m, 1)), arange(end - start) + start
    below = either(columns < rows, part_of(packed, (0, m), (start, end)), zero)
    v = either(acts, either(columns.eq(rows), one, below), zero).contiguous()
    places = arange(end - start)
    is_diagonal = places.eq(places.reshape((-1, 1)))
    inverse = one / either(acts, tau, one)
    return v, either(is_diagonal, inverse, multiplied(adjoint(v), v))


def qr(a: V, mode: str) -> tuple[V, V]:
    _, m, n = sizes_of(a)
    packed, factors = geqrf(a)
    rows = m if mode == "complete" else min(m, n)
    r = part_of(upper_part(packed), (0, rows), (0, n))
    if mode == "r":
        return filled_like(a, (0,), 0), r
    return reflected(packed, factors, None, rows, False), r


def _ormqr(packed: V, factors: V, x: V, left: bool, transpose: bool) -> V:
    if not left:
        return adjoint(_ormqr(packed, factors, adjoint(x), True, not transpose))
    return reflected(packed, factors, x, shape_of(x)[-1], transpose)


def _exponential(a: UOp) -> UOp:
    batch, n, _ = sizes_of(a)
    if 0 in shape_of(a):
        return a
    square = (a.dtype, n * n)
    result, *_ = run_on("exponential", (n,), batch, [square] * 5, [a])
    return by_columns(result, a, batch, n, n)


_FUNCTIONS: dict[str, Function] = {
    "linalg_cholesky_ex": checked(cholesky),
    "cholesky": lambda a, upper: cholesky(a, upper)[0],
    "linalg_lu_factor_ex": checked(lu_factor),
    "linalg_lu": _lu,
    "lu_unpack": _unpacked,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": solve_triangular,
    "triangular_solve": _triangular_solve,
    "linalg_inv_ex": checked(_inverse),
    "_linalg_solve_ex": checked(_solve),
    **dict.fromkeys(("cholesky_solve", "_cholesky_solve_helper"), cholesky_solve),
    "cholesky_inverse": _cholesky_inverse,
    "geqrf": geqrf,
    "linalg_qr": qr,
    **dict.fromkeys(
        ("linalg_householder_product", "orgqr"),
        lambda packed, factors: reflected(packed, factors, None, shape_of(packed)[-1], False),
    ),
    "ormqr": _ormqr,
}
TABLE: Table = {
    **{name: Rule(f, f, is_for_libraries) for name, f in _FUNCTIONS.items()},
    "_linalg_det": Rule(_det, _det, is_for_libraries, reads_layout=True),
    "_linalg_slogdet": Rule(_slogdet, _slogdet, is_for_libraries, reads_layout=True),
    "linalg_matrix_exp": Rule(_exponential, cost=is_for_libraries),
}
