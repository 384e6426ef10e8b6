"""Eigenvalues and singular values, and what is made of them."""

from torch_tiny.lower.conditions import require
from torch_tiny.lower.linalg import geqrf, is_vector, reflected
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.matrices import (
    BLOCK,
    by_columns,
    common_batch,
    diagonal_of,
    identity,
    is_finite,
    part_of,
    run_on,
    sizes_of,
)
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.sort import sort
from torch_tiny.lower.tools import Results, Rule, arange, full, pad, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape

# Larger matrices are turned in blocks, by all groups of threads together.
_ALONE = 80
_WIDTH = {dtypes.float32: 32, dtypes.float64: 16}  # of two blocks: fast memory holds three tiles
_LARGE, _SMALL = 2.0**40, 2.0**-40  # beyond, squares may overflow or vanish


def eigh(a: UOp, triangle: str, vectors: bool) -> Results:
    batch, n, _ = sizes_of(a)
    if 0 in a.shape:
        return full((*batch, n), 0, a.dtype), a if vectors else full((0,), 0, a.dtype)
    require(is_finite(a))
    lower = triangle.upper() == "L"
    if n > _ALONE:
        return _eigh_in_blocks(_symmetric(a, lower), vectors)
    square = (a.dtype, n * n)
    results = [(a.dtype, n), square, *([square, square] if vectors else [])]
    values, _, *rest = run_on("eigh", (n, lower, vectors), batch, results, [a])
    found = by_columns(rest[0], batch, n, n) if vectors else full((0,), 0, a.dtype)
    return values.reshape((*batch, n)), found


def svd(a: UOp, full_matrices: bool, vectors: bool, _driver: str | None = None) -> Results:
    batch, m, n = sizes_of(a)
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
        u = identity(batch, m, columns, a.dtype)
        return (
            (u, values, identity(batch, n, n, a.dtype)) if vectors else (nothing, values, nothing)
        )
    require(is_finite(a))
    if m > max(BLOCK, n) or n > _ALONE:
        return _svd_of_triangle(a, columns, vectors)
    return _svd_alone(a, columns, vectors)


def _svd_alone(a: UOp, columns: int, vectors: bool) -> Results:
    """One group of threads for each matrix."""
    batch, m, n = sizes_of(a)
    nothing = full((0,), 0, a.dtype)
    tall, square = (a.dtype, m * n), (a.dtype, n * n)
    results = [(a.dtype, n), tall, *([tall, square, square] if vectors else [])]
    values, _, *rest = run_on("svd", (m, n, vectors), batch, results, [a])
    values = values.reshape((*batch, n))
    if not vectors:
        return nothing, values, nothing
    u = _completed(by_columns(rest[0], batch, m, n), columns)
    return u, values, by_columns(rest[1], batch, n, n).transpose(-1, -2)


def _svd_of_triangle(a: UOp, columns: int, vectors: bool) -> Results:
    """Rotations are of R alone."""
    batch, m, n = sizes_of(a)
    packed, factors = geqrf(a)
    zero = full((), 0, a.dtype)
    top = part_of(packed, (0, n), (0, n))
    r = (arange(n) < arange(n).reshape((n, 1))).where(zero, top)
    u, values, vh = _svd_in_blocks(r, vectors) if n > _ALONE else _svd_alone(r, n, vectors)
    if not vectors:
        return u, values, vh
    assert u is not None
    whole = pad(u, [*((0, 0) for _ in batch), (0, m - n), (0, columns - n)], 0)
    if columns > n:
        rest = arange(columns).eq(arange(m).reshape((m, 1))) & (arange(columns) < n).logical_not()
        whole = rest.where(full((), 1, a.dtype), whole)
    return reflected(packed, factors, whole, columns, False), values, vh


def _completed(us: UOp, columns: int) -> UOp:
    """U of U S, whose columns are orthogonal but may be zero: Q completes them, up to a sign."""
    batch, _, n = sizes_of(us)
    packed, factors = geqrf(us)
    q = reflected(packed, factors, None, columns, False)
    one = full((), 1, us.dtype)
    signs = (diagonal_of(packed) < 0).where(-one, one).unsqueeze(-2)
    if columns > n:
        signs = pad(signs, [*((0, 0) for _ in batch), (0, 0), (0, columns - n)], 1)
    return q * signs


# --- large matrices ---


def _eigh_in_blocks(a: UOp, vectors: bool) -> Results:
    """Values are those of the vectors: what many products make of the diagonal is less precise."""
    scaled, scale = _scaled(a)
    v = _turned(scaled, True)
    values, order = sort(total(v * matmul(scaled, v).contiguous(), (v.ndim - 2,)), -1, False)
    found = columns_of(v, order) if vectors else full((0,), 0, a.dtype)
    return values * scale.squeeze(-1), found


def _svd_in_blocks(r: UOp, vectors: bool) -> Results:
    """Columns of R^T have less in common than those of R."""
    scaled, scale = _scaled(r.transpose(-1, -2))
    v = _turned(scaled, False)
    us = matmul(scaled, v).contiguous()
    values, order = sort(call("sqrt", total(us * us, (us.ndim - 2,))), -1, True)
    values = values * scale.squeeze(-1)
    if not vectors:
        nothing = full((0,), 0, r.dtype)
        return nothing, values, nothing
    u = _completed(columns_of(us, order).contiguous(), int_shape(r)[-1])
    return columns_of(v, order), values, u.transpose(-1, -2)


def _turned(a: UOp, two_sided: bool) -> UOp:
    """The product of all rotations."""
    batch, n, _ = sizes_of(a)
    width = _WIDTH[a.dtype]
    size = -(-n // width) * width
    padded = pad(a, [*((0, 0) for _ in batch), (0, size - n), (0, size - n)])
    norms = call("sqrt", total(a * a, (a.ndim - 2,)).max((a.ndim - 2,)))
    square, pairs = (a.dtype, size * size), size // width
    results = [square, (a.dtype, size * width), (dtypes.int32, 4 * pairs), square]
    numbers = (size, width, two_sided)
    *_, found = run_on("block_jacobi", numbers, batch, results, [padded, norms])
    return _orthogonal(part_of(found.reshape((*batch, size, size)), (0, n), (0, n)))


def _orthogonal(v: UOp) -> UOp:
    """A step of Newton's: many products of rotations are less orthogonal than they could be."""
    batch, n, _ = sizes_of(v)
    lost = identity(batch, n, n, v.dtype) - matmul(v.transpose(-1, -2), v)
    return (v + matmul(v, lost.contiguous()) * 0.5).contiguous()


def _scaled(a: UOp) -> tuple[UOp, UOp]:
    """So that squares neither overflow nor vanish, and by what."""
    scale = scale_of(call("fabs", a))
    return (a / scale).contiguous(), scale


def scale_of(sizes: UOp) -> UOp:
    """What to divide a matrix by, given the sizes of its elements; mostly 1, exactly."""
    largest = sizes.max((sizes.ndim - 2, sizes.ndim - 1), keepdim=True)
    is_usual = (largest < _LARGE) & (largest > _SMALL)
    return (is_usual | largest.eq(0)).where(full((), 1, sizes.dtype), largest)


def _symmetric(a: UOp, lower: bool) -> UOp:
    n = int_shape(a)[-1]
    rows, columns = arange(n).reshape((n, 1)), arange(n)
    is_other = rows < columns if lower else columns < rows
    return is_other.where(a.transpose(-1, -2), a)


def columns_of(x: UOp, order: UOp) -> UOp:
    return gathered(x, x.ndim - 1, order.cast(dtypes.int32).unsqueeze(-2).expand(int_shape(x)))


# --- least squares ---


def _lstsq(a: UOp, b: UOp, rcond: float | None, driver: str | None) -> Results:
    """The shortest of the best solutions, and the rank, as by LAPACK's gelsy."""
    if driver not in (None, "gelsy") or isinstance(rcond, Lifted):
        raise NoLowering("other drivers tell more")
    batch, m, n = sizes_of(a)
    vector = is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    if common_batch(a, right) != batch:
        raise NoLowering("batches that differ")
    nothing = full((0,), 0, a.dtype)
    if 0 in (*a.shape, *right.shape):
        shape = (*batch, n) if vector else (*batch, n, int_shape(right)[-1])
        return full(shape, 0, a.dtype), nothing, full(batch, 0, dtypes.int64), nothing
    u, s, vh = svd(a, False, True)
    assert u is not None and s is not None and vh is not None
    if rcond is None:
        rcond = {dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}[a.dtype] * max(m, n)
    counts = s > s.max((s.ndim - 1,), keepdim=True) * rcond
    inverse = counts.where(1 / counts.where(s, full((), 1, a.dtype)), full((), 0, a.dtype))
    x = matmul(vh.transpose(-1, -2), matmul(u.transpose(-1, -2), right) * inverse.unsqueeze(-1))
    rank = total(counts.cast(dtypes.int64), (counts.ndim - 1,))
    return x.squeeze(-1) if vector else x, nothing, rank, nothing


TABLE: dict[str, Rule] = {
    "_linalg_eigh": eigh,
    "_linalg_svd": svd,
    "linalg_lstsq": _lstsq,
}
