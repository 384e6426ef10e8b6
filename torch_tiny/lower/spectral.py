"""Eigenvalues and singular values, and what is made of them, of real and of complex matrices."""

from torch_tiny.lower import matrices as mx
from torch_tiny.lower.arithmetic import maximum
from torch_tiny.lower.complex_value import Complex
from torch_tiny.lower.linalg import geqrf, is_for_libraries, is_vector, reflected
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.matrices import V
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.rule import Results, Rule, Table
from torch_tiny.lower.shapes import arange, full, total
from torch_tiny.lower.sort import sort
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape

_LARGE, _SMALL = 2.0**40, 2.0**-40  # beyond, squares may overflow or vanish


def _in_blocks(n: int, a: V) -> bool:
    """Such matrices are turned in blocks, by all groups of threads together."""
    return n > (96 if isinstance(a, Complex) else 80)


def _width(a: V) -> int:
    """Of two blocks: fast memory holds three tiles."""
    return 16 if isinstance(a, Complex) else {dtypes.float32: 32, dtypes.float64: 16}[a.dtype]


def eigh(a: V, triangle: str, vectors: bool) -> tuple[UOp, V]:
    batch, n, _ = mx.sizes_of(a)
    dtype = mx.real(a).dtype
    if 0 in mx.shape_of(a):
        return full(mx.sized(batch, n), 0, dtype), a if vectors else mx.nothing(a)
    mx.require_finite(a)
    lower = triangle.upper() == "L"
    if _in_blocks(n, a):
        return _eigh_in_blocks(_symmetric(a, lower), vectors)
    square = mx.room(a, n * n)
    results = [(dtype, n), square, square, square][: 4 if vectors else 2]
    found = mx.run_on("eigh", (n, lower, vectors), batch, results, [a])
    values = found[0].reshape(mx.sized(batch, n))
    return values, mx.by_columns(found[2], a, batch, n, n) if vectors else mx.nothing(a)


def svd(a: V, full_matrices: bool, vectors: bool, _driver: str | None = None) -> tuple[V, UOp, V]:
    batch, m, n = mx.sizes_of(a)
    if m < n:
        vh, values, uh = svd(mx.adjoint(a), full_matrices, vectors)
        return (mx.adjoint(uh), values, mx.adjoint(vh)) if vectors else (vh, values, uh)
    columns = m if full_matrices else n
    if 0 in mx.shape_of(a):
        values = full(mx.sized(batch, n), 0, mx.real(a).dtype)
        if not vectors:
            return mx.nothing(a), values, mx.nothing(a)
        return mx.identity(batch, m, columns, a), values, mx.identity(batch, n, n, a)
    mx.require_finite(a)
    if mx.is_large(a, m, max(mx.BLOCK, n)) or _in_blocks(n, a):
        return _svd_of_triangle(a, columns, vectors)
    return _svd_alone(a, columns, vectors)


def _svd_alone(a: V, columns: int, vectors: bool) -> tuple[V, UOp, V]:
    """One group of threads for each matrix."""
    batch, m, n = mx.sizes_of(a)
    tall, square = mx.room(a, m * n), mx.room(a, n * n)
    results = [(mx.real(a).dtype, n), tall, tall, square, square][: 5 if vectors else 2]
    found = mx.run_on("svd", (m, n, vectors), batch, results, [a])
    values = found[0].reshape(mx.sized(batch, n))
    if not vectors:
        return mx.nothing(a), values, mx.nothing(a)
    u = _completed(mx.by_columns(found[2], a, batch, m, n), columns)
    return u, values, mx.adjoint(mx.by_columns(found[3], a, batch, n, n))


def _svd_of_triangle(a: V, columns: int, vectors: bool) -> tuple[V, UOp, V]:
    """Rotations are of R alone."""
    _, m, n = mx.sizes_of(a)
    packed, factors = geqrf(a)
    r = mx.upper_part(mx.part_of(packed, (0, n), (0, n)))
    u, values, vh = _svd_in_blocks(r, vectors) if _in_blocks(n, a) else _svd_alone(r, n, vectors)
    if not vectors:
        return u, values, vh
    whole = mx.grown(u, m - n, columns - n)
    if columns > n:
        rest = arange(columns).eq(arange(m).reshape((m, 1))) & (arange(columns) < n).logical_not()
        whole = mx.either(rest, mx.filled_like(a, (), 1), whole)
    return reflected(packed, factors, whole, columns, False), values, vh


def _completed(us: V, columns: int) -> V:
    """U of U S, whose columns are orthogonal but may be zero: Q completes them, up to a sign."""
    n = mx.shape_of(us)[-1]
    packed, factors = geqrf(us)
    q = reflected(packed, factors, None, columns, False)
    diagonal = mx.real(mx.diagonal_of(packed))
    one = full((), 1, diagonal.dtype)
    signs = (diagonal < 0).where(-one, one).unsqueeze(-2)
    if columns > n:
        signs = mx.grown(signs, 0, columns - n, 1)
    return q * signs


# --- large matrices ---


def _eigh_in_blocks(a: V, vectors: bool) -> tuple[UOp, V]:
    """Values are those of the vectors: what many products make of the diagonal is less precise."""
    scaled, scale = _scaled(a)
    v = _turned(scaled, True)
    quotients = total(mx.inner(v, mx.multiplied(scaled, v).contiguous()), (v.ndim - 2,))
    values, order = sort(quotients, -1, False)
    found = _columns_of(v, order) if vectors else mx.nothing(a)
    return values * scale.squeeze(-1), found


def _svd_in_blocks(r: V, vectors: bool) -> tuple[V, UOp, V]:
    """Columns of R^H have less in common than those of R."""
    scaled, scale = _scaled(mx.adjoint(r))
    v = _turned(scaled, False)
    us = mx.multiplied(scaled, v).contiguous()
    values, order = sort(call("sqrt", total(mx.inner(us, us), (us.ndim - 2,))), -1, True)
    values = values * scale.squeeze(-1)
    if not vectors:
        return mx.nothing(r), values, mx.nothing(r)
    u = _completed(_columns_of(us, order).contiguous(), mx.shape_of(r)[-1])
    return _columns_of(v, order), values, mx.adjoint(u)


def _turned(a: V, two_sided: bool) -> V:
    """The product of all rotations."""
    batch, n, _ = mx.sizes_of(a)
    width = _width(a)
    size = -(-n // width) * width
    padded = mx.grown(a, size - n, size - n)
    norms = call("sqrt", total(mx.inner(a, a), (a.ndim - 2,)).max((a.ndim - 2,)))
    square, pairs = mx.room(a, size * size), size // width
    results = [square, mx.room(a, size * width), (dtypes.int32, 4 * pairs), square]
    numbers = (size, width, two_sided)
    *_, found = mx.run_on("block_jacobi", numbers, batch, results, [padded, norms])
    return _orthogonal(mx.part_of(mx.by_rows(found, a, batch, size, size), (0, n), (0, n)))


def _orthogonal(v: V) -> V:
    """A step of Newton's: many products of rotations are less orthogonal than they could be."""
    batch, n, _ = mx.sizes_of(v)
    lost = mx.identity(batch, n, n, v) - mx.multiplied(mx.adjoint(v), v)
    return (v + mx.multiplied(v, lost.contiguous()) * 0.5).contiguous()


def _scaled(a: V) -> tuple[V, UOp]:
    """So that squares neither overflow nor vanish, and by what; mostly 1, exactly."""
    if isinstance(a, Complex):
        sizes = maximum(call("fabs", a.re), call("fabs", a.im))
    else:
        sizes = call("fabs", a)
    largest = sizes.max((sizes.ndim - 2, sizes.ndim - 1), keepdim=True)
    is_usual = (largest < _LARGE) & (largest > _SMALL)
    scale = (is_usual | largest.eq(0)).where(full((), 1, sizes.dtype), largest)
    return mx.each(a, lambda part: (part / scale).contiguous()), scale


def _symmetric(a: V, lower: bool) -> V:
    """Made of one triangle; the imaginary part of the diagonal counts not."""
    n = mx.shape_of(a)[-1]
    rows, columns = arange(n).reshape((n, 1)), arange(n)
    whole = mx.either(rows < columns if lower else columns < rows, mx.adjoint(a), a)
    if isinstance(a, Complex):
        return mx.either(rows.eq(columns), mx.like(a, mx.real(a)), whole)
    return whole


def _columns_of(x: V, order: UOp) -> V:
    at = order.cast(dtypes.int32).unsqueeze(-2).expand(mx.shape_of(x))
    return mx.each(x, lambda part: gathered(part, part.ndim - 1, at))


# --- least squares ---


def _lstsq(a: UOp, b: UOp, rcond: float | None, driver: str | None) -> Results:
    """The shortest of the best solutions, and the rank, as by LAPACK's gelsy."""
    if driver not in (None, "gelsy") or isinstance(rcond, Lifted):
        raise NoLowering("other drivers tell more")
    batch, m, n = mx.sizes_of(a)
    vector = is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    if mx.common_batch(a, right) != batch:
        raise NoLowering("batches that differ")
    nothing = full((0,), 0, a.dtype)
    if 0 in (*a.shape, *right.shape):
        shape = mx.sized(batch, n) if vector else (*batch, n, int_shape(right)[-1])
        return full(shape, 0, a.dtype), nothing, full(batch, 0, dtypes.int64), nothing
    u, s, vh = svd(a, False, True)
    if rcond is None:
        rcond = {dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}[a.dtype] * max(m, n)
    counts = s > s.max((s.ndim - 1,), keepdim=True) * rcond
    inverse = counts.where(1 / counts.where(s, full((), 1, a.dtype)), full((), 0, a.dtype))
    x = matmul(vh.transpose(-1, -2), matmul(u.transpose(-1, -2), right) * inverse.unsqueeze(-1))
    rank = total(counts.cast(dtypes.int64), (counts.ndim - 1,))
    return x.squeeze(-1) if vector else x, nothing, rank, nothing


TABLE: Table = {
    "_linalg_eigh": Rule(eigh, eigh, is_for_libraries),
    "_linalg_svd": Rule(svd, svd, is_for_libraries),
    "linalg_lstsq": Rule(_lstsq, cost=is_for_libraries),
}
