"""Eigenvalues and singular values of complex matrices."""

from torch_tiny.lower.arithmetic import maximum
from torch_tiny.lower.complex_linalg import geqrf, reflected
from torch_tiny.lower.complex_matrices import (
    adjoint_of,
    by_columns,
    multiplied,
    nothing,
    require_finite,
    run_on,
    sizes_of,
    transposed,
)
from torch_tiny.lower.complex_rules import ComplexResults, ComplexRule
from torch_tiny.lower.complex_value import Complex, from_real
from torch_tiny.lower.matrices import diagonal_of, identity, part_of
from torch_tiny.lower.sort import sort
from torch_tiny.lower.spectral import columns_of, scale_of
from torch_tiny.lower.tools import arange, full, pad, total
from torch_tiny.uops import UOp, call, dtypes

# As in spectral.py; the blocks are smaller, and worth it later.
_ALONE = 96
_WIDTH = 16


def eigh(a: Complex, triangle: str, vectors: bool) -> ComplexResults:
    batch, n, _ = sizes_of(a)
    part = a.re.dtype
    if 0 in a.shape:
        return full((*batch, n), 0, part), a if vectors else nothing((0,), part)
    require_finite(a)
    lower = triangle.upper() == "L"
    if n > _ALONE:
        return _eigh_in_blocks(_hermitian(a, lower), vectors)
    square = (part, 2 * n * n)
    results = [(part, n), square, *([square, square] if vectors else [])]
    numbers = (n, lower, vectors)
    values, _, *rest = run_on("eigh", numbers, batch, results, [a])
    found = by_columns(rest[0], batch, n, n) if vectors else nothing((0,), part)
    return values.reshape((*batch, n)), found


def svd(
    a: Complex, full_matrices: bool, vectors: bool, _driver: str | None = None
) -> ComplexResults:
    batch, m, n = sizes_of(a)
    part = a.re.dtype
    if m < n:
        vh, values, uh = svd(adjoint_of(a), full_matrices, vectors)
        if not vectors:
            return vh, values, uh
        assert isinstance(vh, Complex) and isinstance(uh, Complex)
        return adjoint_of(uh), values, adjoint_of(vh)
    empty = nothing((0,), part)
    columns = m if full_matrices else n
    if 0 in a.shape:
        values = full((*batch, n), 0, part)
        u, v = (from_real(identity(batch, k, c, part)) for k, c in ((m, columns), (n, n)))
        return (u, values, v) if vectors else (empty, values, empty)
    require_finite(a)
    if n > _ALONE:
        return _svd_in_blocks(a, columns, vectors)
    tall, square = (part, 2 * m * n), (part, 2 * n * n)
    results = [(part, n), tall, *([tall, square, square] if vectors else [])]
    values, _, *rest = run_on("svd", (m, n, vectors), batch, results, [a])
    values = values.reshape((*batch, n))
    if not vectors:
        return empty, values, empty
    u = _completed(by_columns(rest[0], batch, m, n), columns)
    return u, values, adjoint_of(by_columns(rest[1], batch, n, n))


def _completed(us: Complex, columns: int) -> Complex:
    """U of U S, whose columns are orthogonal but may be zero: Q completes them, up to a sign."""
    batch, _, n = sizes_of(us)
    packed, factors = geqrf(us)
    q = reflected(packed, factors, None, columns, False)
    one = full((), 1, us.re.dtype)
    signs = (diagonal_of(packed.re) < 0).where(-one, one).unsqueeze(-2)
    if columns > n:
        signs = pad(signs, [*((0, 0) for _ in batch), (0, 0), (0, columns - n)], 1)
    return q.scaled(signs)


# --- large matrices, as spectral.py has it of real ones ---


def _eigh_in_blocks(a: Complex, vectors: bool) -> ComplexResults:
    scaled, scale = _scaled(a)
    v = _turned(scaled, True)
    turned = multiplied(scaled, v)
    quotients = total(v.re * turned.re + v.im * turned.im, (v.ndim - 2,))
    values, order = sort(quotients, -1, False)
    found = v.each(lambda p: columns_of(p, order)) if vectors else nothing((0,), a.re.dtype)
    return values * scale.squeeze(-1), found


def _svd_in_blocks(a: Complex, columns: int, vectors: bool) -> ComplexResults:
    batch, m, n = sizes_of(a)
    packed, factors = geqrf(a)
    zero = full((), 0, a.re.dtype)
    is_below = arange(n) < arange(n).reshape((n, 1))
    r = packed.each(lambda p: is_below.where(zero, part_of(p, (0, n), (0, n))))
    scaled, scale = _scaled(adjoint_of(r))
    v = _turned(scaled, False)
    us = multiplied(scaled, v)
    lengths = call("sqrt", total(us.re * us.re + us.im * us.im, (us.ndim - 2,)))
    values, order = sort(lengths, -1, True)
    values = values * scale.squeeze(-1)
    if not vectors:
        return nothing((0,), a.re.dtype), values, nothing((0,), a.re.dtype)
    u = _completed(us.each(lambda p: columns_of(p, order).contiguous()), n)
    widths = [*((0, 0) for _ in batch), (0, m - n), (0, columns - n)]
    whole = v.each(lambda p: pad(columns_of(p, order), widths))
    if columns > n:
        rest = arange(columns).eq(arange(m).reshape((m, 1))) & (arange(columns) < n).logical_not()
        whole = Complex(rest.where(full((), 1, a.re.dtype), whole.re), whole.im)
    return reflected(packed, factors, whole, columns, False), values, adjoint_of(u)


def _turned(a: Complex, two_sided: bool) -> Complex:
    """The product of all rotations, made orthogonal to the last bits."""
    batch, n, _ = sizes_of(a)
    part = a.re.dtype
    size = -(-n // _WIDTH) * _WIDTH
    padded = a.each(lambda p: pad(p, [*((0, 0) for _ in batch), (0, size - n), (0, size - n)]))
    norms = call("sqrt", total(a.re * a.re + a.im * a.im, (a.ndim - 2,)).max((a.ndim - 2,)))
    square = (part, 2 * size * size)
    numbers = (dtypes.int32, 4 * size // _WIDTH)
    results = [square, (part, 2 * size * _WIDTH), numbers, square]
    given = (size, _WIDTH, two_sided)
    *_, found = run_on("block_jacobi", given, batch, results, [padded, norms])
    v = transposed(by_columns(found, batch, size, size)).each(lambda p: part_of(p, (0, n), (0, n)))
    lost = from_real(identity(batch, n, n, part)) - multiplied(adjoint_of(v), v)
    return (v + multiplied(v, lost).scaled(0.5)).each(lambda p: p.contiguous())


def _scaled(a: Complex) -> tuple[Complex, UOp]:
    scale = scale_of(maximum(call("fabs", a.re), call("fabs", a.im)))
    return a.each(lambda p: (p / scale).contiguous()), scale


def _hermitian(a: Complex, lower: bool) -> Complex:
    n = a.shape[-1]
    rows, columns = arange(n).reshape((n, 1)), arange(n)
    is_other = rows < columns if lower else columns < rows
    re, im = (is_other.where(p.transpose(-1, -2), p) for p in (a.re, a.im))
    zero = full((), 0, a.re.dtype)
    return Complex(re, rows.eq(columns).where(zero, is_other.where(-im, im)))


TABLE: dict[str, ComplexRule] = {
    "_linalg_eigh": eigh,
    "_linalg_svd": svd,
}
