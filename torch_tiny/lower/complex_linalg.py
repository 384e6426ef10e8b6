"""Factorizations of complex matrices: the kernels of real ones, on real and imaginary parts."""

from torch_tiny.lower import complex_rules, linalg
from torch_tiny.lower.complex_math import choose, filled, is_zero
from torch_tiny.lower.complex_matrices import (
    adjoint_of,
    by_columns,
    nothing,
    run_on,
    sizes_of,
    transposed,
)
from torch_tiny.lower.complex_rules import ComplexResults, ComplexRule
from torch_tiny.lower.complex_value import Complex, as_complex, from_real, part_dtype
from torch_tiny.lower.conditions import require
from torch_tiny.lower.matrices import INT, checked, common_batch, diagonal_of, identity, sign_of
from torch_tiny.lower.promote import NoLowering
from torch_tiny.lower.tools import arange, cut, full, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape

Batch = tuple[int, ...]


def cholesky(a: Complex, upper: bool) -> tuple[Complex, UOp]:
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    part = a.re.dtype
    factor, info = run_on("cholesky", (n, upper), batch, [(part, 2 * n * n), INT], [a])
    return by_columns(factor, batch, n, n), info.reshape(batch)


def lu_factor(a: Complex, pivot: bool = True) -> tuple[Complex, UOp, UOp]:
    if not pivot:
        raise NoLowering("without pivots")
    batch, m, n = sizes_of(a)
    count = min(m, n)
    if 0 in a.shape:
        return a, full((*batch, count), 0, dtypes.int32), full(batch, 0, dtypes.int32)
    results = [(a.re.dtype, 2 * m * n), (dtypes.int32, count), INT]
    factors, pivots, info = run_on("lu", (m, n), batch, results, [a])
    shaped = pivots.reshape((*batch, count)), info.reshape(batch)
    return by_columns(factors, batch, m, n), *shaped


def _lu(a: Complex, pivot: bool) -> ComplexResults:
    factors, pivots, _ = lu_factor(a, pivot)
    return _unpacked(factors, pivots)


def _unpacked(
    factors: Complex, pivots: UOp, data: bool = True, order: bool = True
) -> ComplexResults:
    p, low, up = linalg.unpacked(factors.re, pivots, data, order)
    _, low_im, up_im = linalg.unpacked(factors.im, pivots, data, False)
    assert p is not None and low is not None and up is not None
    assert low_im is not None and up_im is not None
    if data and 0 not in low_im.shape:  # the ones on the diagonal are real
        batch, m, n = sizes_of(Complex(low_im, low_im))
        low_im = low_im - identity(batch, m, n, low_im.dtype)
    return from_real(p), Complex(low, low_im), Complex(up, up_im)


def _solve(a: Complex, b: Complex, left: bool) -> ComplexResults:
    is_vector = linalg.is_vector(a.re, b.re)
    right = b.each(lambda p: p.unsqueeze(-1)) if is_vector else b
    factors, pivots, info = lu_factor(a)
    x = lu_solve(factors, pivots, right, left, False)
    return x.each(lambda p: p.squeeze(-1)) if is_vector else x, factors, pivots, info


def lu_solve(factors: Complex, pivots: UOp, b: Complex, left: bool, adjoint: bool) -> Complex:
    if not left:
        return adjoint_of(lu_solve(factors, pivots, adjoint_of(b), True, not adjoint))
    batch, n, columns = common_batch(factors.re, b.re), factors.shape[-1], b.shape[-1]
    if 0 in (*batch, n, columns):
        return nothing((*batch, n, columns), b.re.dtype)
    # Its kernel takes the factors by columns.
    given: list[Complex | UOp] = [
        _expanded(transposed(factors), batch),
        pivots.expand((*batch, n)),
        _expanded(b, batch),
    ]
    results = [(b.re.dtype, 2 * n * columns)]
    (x,) = run_on("lu_solve", (n, columns, adjoint), batch, results, given)
    return by_columns(x, batch, n, columns)


def _inverse(a: Complex) -> tuple[Complex, UOp]:
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return a, full(batch, 0, dtypes.int32)
    square = (a.re.dtype, 2 * n * n)
    results = [square, square, (dtypes.int32, n), INT]
    inverse, _, _, info = run_on("solve", (n, 0), batch, results, [a])
    return by_columns(inverse, batch, n, n), info.reshape(batch)


def _det(a: Complex) -> ComplexResults:
    factors, pivots, _ = lu_factor(a)
    found = _product(factors.each(diagonal_of)).scaled(sign_of(pivots, a.re.dtype))
    return found, factors, pivots


def _slogdet(a: Complex) -> ComplexResults:
    factors, pivots, _ = lu_factor(a)
    diagonal = factors.each(diagonal_of)
    if 0 in a.shape:
        batch, _, _ = sizes_of(a)
        sizes = full(batch, 0, a.re.dtype)
        return _product(diagonal), sizes, factors, pivots
    size = diagonal.abs()
    one = size.eq(0).where(full((), 1, size.dtype), size)
    phases = choose(is_zero(diagonal), filled(diagonal, 0.0), diagonal.each(lambda p: p / one))
    sign = _product(phases).scaled(sign_of(pivots, a.re.dtype))
    return sign, total(call("log", size), (size.ndim - 1,)), factors, pivots


def solve_triangular(a: Complex, b: Complex, upper: bool, left: bool, unit: bool) -> Complex:
    if not left:
        return transposed(solve_triangular(transposed(a), transposed(b), not upper, True, unit))
    part = part_dtype(a, b)
    a, b = as_complex(a, part), as_complex(b, part)
    batch, n, columns = common_batch(a.re, b.re), a.shape[-1], b.shape[-1]
    if 0 in (*batch, n, columns):
        return nothing((*batch, n, columns), part)
    given = [_expanded(a, batch), _expanded(b, batch)]
    numbers = (n, columns, upper, unit)
    (x,) = run_on("triangular_solve", numbers, batch, [(part, 2 * n * columns)], given)
    return by_columns(x, batch, n, columns)


def _old_triangular_solve(
    b: Complex, a: Complex, upper: bool, transpose: bool, unit: bool
) -> ComplexResults:
    if transpose:
        return solve_triangular(transposed(a), b, not upper, True, unit), a
    return solve_triangular(a, b, upper, True, unit), a


def cholesky_solve(b: Complex, factor: Complex, upper: bool) -> Complex:
    batch, n, columns = common_batch(factor.re, b.re), factor.shape[-1], b.shape[-1]
    if 0 in (*batch, n, columns):
        return nothing((*batch, n, columns), b.re.dtype)
    given = [_expanded(factor, batch), _expanded(b, batch)]
    results = [(b.re.dtype, 2 * n * columns)]
    (x,) = run_on("cholesky_solve", (n, columns, upper), batch, results, given)
    return by_columns(x, batch, n, columns)


def _cholesky_inverse(factor: Complex, upper: bool) -> Complex:
    batch, n, _ = sizes_of(factor)
    diagonal = factor.each(diagonal_of)
    require(diagonal.re.ne(0) | diagonal.im.ne(0))
    return cholesky_solve(from_real(identity(batch, n, n, factor.re.dtype)), factor, upper)


# --- orthogonal factors ---


def geqrf(a: Complex) -> tuple[Complex, Complex]:
    batch, m, n = sizes_of(a)
    count, part = min(m, n), a.re.dtype
    if 0 in a.shape:
        return a, nothing((*batch, count), part)
    results = [(part, 2 * m * n), (part, 2 * count)]
    packed, factors = run_on("geqrf", (m, n), batch, results, [a])
    found = by_columns(factors, batch, count, 1).each(lambda p: p.reshape((*batch, count)))
    return by_columns(packed, batch, m, n), found


def reflected(
    packed: Complex, factors: Complex, x: Complex | None, columns: int, forward: bool
) -> Complex:
    """Q X or Q^H X; the first columns of Q without an X."""
    batch, m, _ = sizes_of(packed)
    count, part = factors.shape[-1], packed.re.dtype
    if 0 in (*batch, m, columns, count):
        return from_real(identity(batch, m, columns, part)) if x is None else x
    used = transposed(packed.each(lambda p: cut(p, p.ndim - 1, 0, count)))
    column = factors.each(lambda p: p.unsqueeze(-1))
    given = [used, column] if x is None else [used, column, x]
    numbers = (m, count, columns, forward, x is not None)
    (result,) = run_on("reflect", numbers, batch, [(part, 2 * m * columns)], given)
    return by_columns(result, batch, m, columns)


def qr(a: Complex, mode: str) -> tuple[Complex, Complex]:
    _, m, n = sizes_of(a)
    packed, factors = geqrf(a)
    rows = m if mode == "complete" else min(m, n)
    zero = full((), 0, a.re.dtype)

    def above(p: UOp) -> UOp:
        kept = (arange(n) < arange(m).reshape((m, 1))).where(zero, p) if m and n else p
        return cut(kept, kept.ndim - 2, 0, rows)

    r = packed.each(above)
    if mode == "r":
        return nothing((0,), a.re.dtype), r
    return reflected(packed, factors, None, rows, False), r


def _ormqr(packed: Complex, factors: Complex, x: Complex, left: bool, transpose: bool) -> Complex:
    if not left:
        return adjoint_of(_ormqr(packed, factors, adjoint_of(x), True, not transpose))
    return reflected(packed, factors, x, x.shape[-1], transpose)


# --- pieces ---


def _expanded(a: Complex, batch: Batch) -> Complex:
    return a.each(lambda p: p.expand((*batch, *int_shape(p)[-2:])))


def _product(z: Complex) -> Complex:
    found = complex_rules.TABLE["prod.dim_int"](z, -1, False, None)
    assert isinstance(found, Complex)
    return found


TABLE: dict[str, ComplexRule] = {
    "linalg_cholesky_ex": checked(cholesky),
    "cholesky": lambda a, upper: cholesky(a, upper)[0],
    "linalg_lu_factor_ex": checked(lu_factor),
    "linalg_lu": _lu,
    "lu_unpack": _unpacked,
    "linalg_lu_solve": lu_solve,
    "linalg_solve_triangular": solve_triangular,
    "triangular_solve": _old_triangular_solve,
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
        lambda packed, factors: reflected(packed, factors, None, packed.shape[-1], False),
    ),
    "ormqr": _ormqr,
}
