"""Factorizations and what is solved with them, by the kernels of torch_tiny.linalg.

One text for real and for complex matrices (matrices.py).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch_tiny.lower import matrices as mx
from torch_tiny.lower.arithmetic import log
from torch_tiny.lower.complex_value import Complex
from torch_tiny.lower.conditions import require
from torch_tiny.lower.matrices import V
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.rule import Function, Rule, Shapes, Table
from torch_tiny.lower.shapes import arange, full, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import ViewSpec, cut


def is_for_libraries(shapes: Shapes) -> bool:
    """Whether LAPACK and cuSOLVER are sure to be better at a batch of matrices."""
    shape = shapes[0] if shapes else ()
    return len(shape) < 3 or math.prod(shape[:-2]) < 8 or max(shape[-2:]) > 128


def cholesky(a: V, upper: bool) -> tuple[V, UOp]:
    """The factor and info."""
    batch, n, _ = mx.sizes_of(a)
    if 0 in mx.shape_of(a):
        return a, full(batch, 0, dtypes.int32)
    if mx.is_large(a, n):
        if upper:
            factor, info = cholesky(mx.adjoint(a), False)
            return mx.adjoint(factor), info
        return _cholesky_by_halves(a)
    found, info = mx.run_on("cholesky", (n, upper), batch, [mx.room(a, n * n), mx.INT], [a])
    return mx.by_columns(found, a, batch, n, n), info.reshape(batch)


def _cholesky_by_halves(a: V) -> tuple[V, UOp]:
    """Products do most of the work: L21 = A21 L11^-H, and L22 is the factor of A22 - L21 L21^H."""
    batch, n, _ = mx.sizes_of(a)
    half = mx.half_of(n)
    first, info = cholesky(mx.part_of(a, (0, half), (0, half)), False)
    corner = mx.part_of(a, (half, n), (0, half))
    below = solve_triangular(mx.adjoint(first), corner, True, False, False)
    rest = mx.part_of(a, (half, n), (half, n)) - mx.multiplied(below, mx.adjoint(below))
    second, later = cholesky(rest, False)
    info = mx.first_info(info, later, half)
    zero = mx.filled_like(a, mx.sized(batch, half, n - half), 0)
    return mx.joined([[first, zero], [below, second]]), info


def lu_factor(a: V, pivot: bool = True) -> tuple[V, UOp, UOp]:
    """L and U in one matrix, pivots from 1, info."""
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = mx.sizes_of(a)
    count = min(m, n)
    if 0 in mx.shape_of(a):
        return a, full(mx.sized(batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    if mx.is_large(a, count):
        return _lu_by_halves(a)
    results = [mx.room(a, m * n), (dtypes.int32, count), mx.INT]
    factors, pivots, info = mx.run_on("lu", (m, n), batch, results, [a])
    return (
        mx.by_columns(factors, a, batch, m, n),
        pivots.reshape(mx.sized(batch, count)),
        info.reshape(batch),
    )


def _lu_by_halves(a: V) -> tuple[V, UOp, UOp]:
    """The left half, what its pivots and L make of the right one, and what is left of that."""
    _, m, n = mx.sizes_of(a)
    half = mx.half_of(min(m, n))
    left, pivots, info = lu_factor(mx.part_of(a, (0, m), (0, half)))
    right = mx.rows_permuted(mx.part_of(a, (0, m), (half, n)), pivots)
    lower, below = mx.part_of(left, (0, half), (0, half)), mx.part_of(left, (half, m), (0, half))
    above = solve_triangular(lower, mx.part_of(right, (0, half), (0, n - half)), False, True, True)
    rest = mx.part_of(right, (half, m), (0, n - half)) - mx.multiplied(below, above)
    second, more, later = lu_factor(rest)
    return (
        mx.joined([[lower, above], [mx.rows_permuted(below, more), second]]),
        mx.side_by_side([pivots, more + half], -1),
        mx.first_info(info, later, half),
    )


def _solve(a: V, b: V, left: bool) -> tuple[V, V, UOp, UOp]:
    vector = is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    batch, n, _ = mx.sizes_of(a)
    is_plain = left and mx.common_batch(a, right) == batch and not mx.is_large(a, n)
    if not is_plain or 0 in mx.shape_of(a) + mx.shape_of(right):
        factors, pivots, info = lu_factor(a)
        x = lu_solve(factors, pivots, right, left, False)
        return x.squeeze(-1) if vector else x, factors, pivots, info
    columns = mx.shape_of(right)[-1]
    right = right.expand(mx.sized(batch, n, columns))
    results = [mx.room(a, n * columns), mx.room(a, n * n), (dtypes.int32, n), mx.INT]
    solved, packed, pivots, info = mx.run_on("solve", (n, columns), batch, results, [a, right])
    x = mx.by_columns(solved, a, batch, n, columns)
    return (
        x.squeeze(-1) if vector else x,
        mx.by_columns(packed, a, batch, n, n),
        pivots.reshape(mx.sized(batch, n)),
        info.reshape(batch),
    )


def is_vector(a: V, b: V) -> bool:
    """As linalg.solve tells a batch of vectors from a matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and mx.shape_of(a)[:-1] == mx.shape_of(b))


def _inverse(a: V) -> tuple[V, UOp]:
    batch, n, _ = mx.sizes_of(a)
    if 0 in mx.shape_of(a):
        return a, full(batch, 0, dtypes.int32)
    if mx.is_large(a, n):
        factors, pivots, info = lu_factor(a)
        return lu_solve(factors, pivots, mx.identity(batch, n, n, a), True, False), info
    results = [mx.room(a, n * n), mx.room(a, n * n), (dtypes.int32, n), mx.INT]
    x, _, _, info = mx.run_on("solve", (n, 0), batch, results, [a])
    return mx.by_columns(x, a, batch, n, n), info.reshape(batch)


def lu_solve(factors: V, pivots: UOp, b: V, left: bool, is_adjoint: bool) -> V:
    if not left:
        return mx.adjoint(lu_solve(factors, pivots, mx.adjoint(b), True, not is_adjoint))
    batch, n = mx.common_batch(factors, b), mx.shape_of(factors)[-1]
    pivots = pivots.expand(mx.sized(batch, n))

    def by_halves() -> V:
        whole = b.expand(mx.sized(batch, *mx.shape_of(b)[-2:]))
        return _lu_solve_by_halves(factors, pivots, whole, is_adjoint)

    # Its kernel takes the factors by columns.
    columnwise = factors.transpose(-1, -2)
    return _solved("lu_solve", columnwise, b, (is_adjoint,), by_halves, [pivots])


def _solved(
    name: str, a: V, b: V, flags: Sequence[int], by_halves: Callable[[], V],
    between: Sequence[UOp] = (),
) -> V:  # fmt: skip
    """By a kernel that takes a, what comes between, and b; by products if a is large."""
    batch, n, columns = mx.common_batch(a, b), mx.shape_of(a)[-1], mx.shape_of(b)[-1]
    if 0 in mx.sized(batch, n, columns):
        return mx.filled_like(b, mx.sized(batch, n, columns), 0)
    if mx.is_large(a, n):
        return by_halves()
    right = b.expand(mx.sized(batch, n, columns))
    given: list[UOp | Complex] = [a.expand(mx.sized(batch, n, n)), *between, right]
    (x,) = mx.run_on(name, (n, columns, *flags), batch, [mx.room(b, n * columns)], given)
    return mx.by_columns(x, b, batch, n, columns)


def _lu_solve_by_halves(factors: V, pivots: UOp, b: V, is_adjoint: bool) -> V:
    if is_adjoint:
        turned = mx.adjoint(factors)
        y = solve_triangular(turned, b, False, True, False)
        return mx.rows_permuted(solve_triangular(turned, y, True, True, True), pivots, back=True)
    y = solve_triangular(factors, mx.rows_permuted(b, pivots), False, True, True)
    return solve_triangular(factors, y, True, True, False)


def solve_triangular(a: V, b: V, upper: bool, left: bool, unit: bool) -> V:
    if not left:
        solved = solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unit)
        return solved.transpose(-1, -2)
    by_halves = partial(_triangular_by_halves, a, b, upper, unit)
    return _solved("triangular_solve", a, b, (upper, unit), by_halves)


def _triangular_by_halves(a: V, b: V, upper: bool, unit: bool) -> V:
    n, columns = mx.shape_of(b)[-2:]
    half = mx.half_of(n)
    parts = [(0, half), (half, n)]
    first, second = parts[::-1] if upper else parts
    every = (0, columns)
    given = mx.part_of(b, first, every)
    x = solve_triangular(mx.part_of(a, first, first), given, upper, True, unit)
    rest = mx.part_of(b, second, every) - mx.multiplied(mx.part_of(a, second, first), x)
    y = solve_triangular(mx.part_of(a, second, second), rest, upper, True, unit)
    return mx.side_by_side([y, x] if upper else [x, y], -2)


def _triangular_solve(b: V, a: V, upper: bool, transpose: bool, unit: bool) -> tuple[V, V]:
    turned = a.transpose(-1, -2) if transpose else a
    return solve_triangular(turned, b, upper != transpose, True, unit), a


def cholesky_solve(b: V, factor: V, upper: bool) -> V:
    def by_halves() -> V:
        lower = mx.adjoint(factor) if upper else factor
        y = solve_triangular(lower, b, False, True, False)
        return solve_triangular(mx.adjoint(lower), y, True, True, False)

    return _solved("cholesky_solve", factor, b, (upper,), by_halves)


def _cholesky_inverse(factor: V, upper: bool) -> V:
    batch, n, _ = mx.sizes_of(factor)
    require(_differs(mx.diagonal_of(factor)))
    return cholesky_solve(mx.identity(batch, n, n, factor), factor, upper)


def _differs(a: V) -> UOp:
    """From 0."""
    return a.re.ne(0) | a.im.ne(0) if isinstance(a, Complex) else a.ne(0)


def _as_lapack_takes_it(a: V, layout: ViewSpec | None) -> V:
    """Real ones without a copy. PyTorch's derivatives know which one was factored."""
    plain = layout is None or layout.is_contiguous()
    return a if isinstance(a, Complex) or not plain else a.transpose(-1, -2)


def _det(a: V, layout: ViewSpec | None) -> tuple[V, V, UOp]:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a, layout))
    sign = mx.sign_of(pivots, mx.real(a).dtype)
    return mx.product_of(mx.diagonal_of(factors)) * sign, factors, pivots


def _slogdet(a: V, layout: ViewSpec | None) -> tuple[V, UOp, V, UOp]:
    factors, pivots, _ = lu_factor(_as_lapack_takes_it(a, layout))
    diagonal = mx.diagonal_of(factors)
    sign = mx.product_of(mx.phase(diagonal)) * mx.sign_of(pivots, mx.real(a).dtype)
    size = log(mx.magnitude(diagonal)) if 0 not in mx.shape_of(a) else mx.real(diagonal)
    return sign, total(size, (size.ndim - 1,)), factors, pivots


def _unpacked(factors: V, pivots: UOp, data: bool = True, order: bool = True) -> tuple[V, V, V]:
    batch, m, n = mx.sizes_of(factors)
    count = min(m, n)
    lower = upper = empty = mx.nothing(factors)
    if data:
        zero, one = (mx.filled_like(factors, (), value) for value in (0, 1))
        is_below = mx.below_diagonal(m, n)
        is_diagonal = arange(n).eq(arange(m).reshape((m, 1)))
        unit = mx.either(is_diagonal, one, mx.either(is_below, factors, zero))
        lower = mx.part_of(unit, (0, m), (0, count))
        upper = mx.part_of(mx.either(is_below, zero, factors), (0, count), (0, n))
    if not order:
        return empty, lower, upper
    if 0 in mx.sized(batch, m):
        return mx.filled_like(factors, mx.sized(batch, m, m), 0), lower, upper
    if count == 0:
        return mx.identity(batch, m, m, factors), lower, upper
    row_of = mx.row_order(pivots, m).reshape(mx.sized(batch, 1, m))
    permuted = row_of.eq(arange(m).reshape((m, 1)))
    return mx.like(factors, cast(permuted, mx.real(factors).dtype)), lower, upper


def _lu_unpack(factors: V, pivots: UOp, data: bool, order: bool) -> tuple[V, V, V]:
    if order:
        require((pivots >= 1) & (pivots <= mx.shape_of(factors)[-2]))
    return _unpacked(factors, pivots, data, order)


# --- orthogonal factors ---


def geqrf(a: V) -> tuple[V, V]:
    """R and the reflections in one matrix, and their factors."""
    batch, m, n = mx.sizes_of(a)
    count = min(m, n)
    if 0 in mx.shape_of(a):
        return a, mx.filled_like(a, mx.sized(batch, count), 0)
    if mx.is_large(a, count, mx.PANEL):
        return _geqrf_by_halves(a)
    packed, factors = mx.run_on("geqrf", (m, n), batch, [mx.room(a, m * n), mx.room(a, count)], [a])
    return mx.by_columns(packed, a, batch, m, n), mx.by_rows(factors, a, batch, count)


def reflected(packed: V, factors: V, x: V | None, columns: int, forward: bool) -> V:
    """Q X, or Q^H X if forward; the first columns of Q without an X."""
    batch, m, _ = mx.sizes_of(packed)
    count = mx.shape_of(factors)[-1]
    if 0 in mx.sized(batch, m, columns, count):
        return mx.identity(batch, m, columns, packed) if x is None else x
    if mx.is_large(packed, max(count, m, columns), mx.PANEL):
        start = mx.identity(batch, m, columns, packed) if x is None else x
        return _reflected_in_blocks(packed, factors, start, forward)
    used = mx.part_of(packed, (0, m), (0, count)).transpose(-1, -2)
    given = [used, factors] if x is None else [used, factors, x]
    numbers = (m, count, columns, forward, x is not None)
    (result,) = mx.run_on("reflect", numbers, batch, [mx.room(packed, m * columns)], given)
    return mx.by_columns(result, packed, batch, m, columns)


def _geqrf_by_halves(a: V) -> tuple[V, V]:
    """The left half, what its reflections make of the right one, and the rest of that."""
    _, m, n = mx.sizes_of(a)
    half = mx.half_of(min(m, n))
    left, first = geqrf(mx.part_of(a, (0, m), (0, half)))
    right = _reflected_in_blocks(left, first, mx.part_of(a, (0, m), (half, n)), True)
    rest, second = geqrf(mx.part_of(right, (half, m), (0, n - half)))
    below = mx.side_by_side([mx.part_of(right, (0, half), (0, n - half)), rest], -2)
    return mx.side_by_side([left, below], -1), mx.side_by_side([first, second], -1)


def _reflected_in_blocks(packed: V, factors: V, x: V, forward: bool) -> V:
    """Products do the work: a block of reflections is I - V S^-1 V^H, with a triangular S."""
    count = mx.shape_of(factors)[-1]
    starts = range(0, count, mx.BLOCK)
    for start in starts if forward else reversed(starts):
        v, s = _block_of(packed, factors, start, min(start + mx.BLOCK, count))
        inside = mx.multiplied(mx.adjoint(v), x)
        turned = mx.adjoint(s) if forward else s
        x = x - mx.multiplied(v, solve_triangular(turned, inside, not forward, True, False))
    return x


def _block_of(packed: V, factors: V, start: int, end: int) -> tuple[V, V]:
    """V and S: above its diagonal V^H V, on it the inverse factors; Puglisi's compact WY."""
    m = mx.shape_of(packed)[-2]
    zero, one = (mx.filled_like(packed, (), value) for value in (0, 1))
    tau = mx.each(factors, lambda part: cut(part, part.ndim - 1, start, end)).unsqueeze(-2)
    acts = _differs(tau)  # what does not is left out
    rows, columns = arange(m).reshape((m, 1)), arange(end - start) + start
    below = mx.either(columns < rows, mx.part_of(packed, (0, m), (start, end)), zero)
    v = mx.either(acts, mx.either(columns.eq(rows), one, below), zero).contiguous()
    places = arange(end - start)
    is_diagonal = places.eq(places.reshape((-1, 1)))
    inverse = one / mx.either(acts, tau, one)
    return v, mx.either(is_diagonal, inverse, mx.multiplied(mx.adjoint(v), v))


def qr(a: V, mode: str) -> tuple[V, V]:
    _, m, n = mx.sizes_of(a)
    packed, factors = geqrf(a)
    rows = m if mode == "complete" else min(m, n)
    r = mx.part_of(mx.upper_part(packed), (0, rows), (0, n))
    if mode == "r":
        return mx.nothing(a), r
    return reflected(packed, factors, None, rows, False), r


def _ormqr(packed: V, factors: V, x: V, left: bool, transpose: bool) -> V:
    if not left:
        return mx.adjoint(_ormqr(packed, factors, mx.adjoint(x), True, not transpose))
    return reflected(packed, factors, x, mx.shape_of(x)[-1], transpose)


def _exponential(a: UOp) -> UOp:
    batch, n, _ = mx.sizes_of(a)
    if 0 in mx.shape_of(a):
        return a
    square = (a.dtype, n * n)
    result, *_ = mx.run_on("exponential", (n,), batch, [square] * 5, [a])
    return mx.by_columns(result, a, batch, n, n)


_FUNCTIONS: dict[str, Function] = {
    "linalg_cholesky_ex": partial(mx.checked, cholesky),
    "cholesky": lambda a, upper: cholesky(a, upper)[0],
    "linalg_lu_factor_ex": partial(mx.checked, lu_factor),
    "linalg_lu": lambda a, pivot: _unpacked(*lu_factor(a, pivot)[:2]),
    "lu_unpack": _lu_unpack,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": solve_triangular,
    "triangular_solve": _triangular_solve,
    "linalg_inv_ex": partial(mx.checked, _inverse),
    "_linalg_solve_ex": partial(mx.checked, _solve),
    **dict.fromkeys(("cholesky_solve", "_cholesky_solve_helper"), cholesky_solve),
    "cholesky_inverse": _cholesky_inverse,
    "geqrf": geqrf,
    "linalg_qr": qr,
    **dict.fromkeys(
        ("linalg_householder_product", "orgqr"),
        lambda packed, factors: reflected(packed, factors, None, mx.shape_of(packed)[-1], False),
    ),
    "ormqr": _ormqr,
}
TABLE: Table = {
    **{name: Rule(f, f, is_for_libraries) for name, f in _FUNCTIONS.items()},
    "_linalg_det": Rule(_det, _det, is_for_libraries, reads_layout=True),
    "_linalg_slogdet": Rule(_slogdet, _slogdet, is_for_libraries, reads_layout=True),
    "linalg_matrix_exp": Rule(_exponential, cost=is_for_libraries),
}
