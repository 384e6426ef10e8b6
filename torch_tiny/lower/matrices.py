"""Pieces of batches of matrices, real or complex, and the door to the kernels of torch_tiny.linalg.

A matrix is a UOp, or a Complex of two. What is the same for both is written once, of type V; what
differs is below, under "numbers".
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from torch_tiny.linalg.routine import COMPLEX, run
from torch_tiny.lower import complex_rules, reduce
from torch_tiny.lower.complex_math import choose, filled, is_zero
from torch_tiny.lower.complex_value import Complex, from_both, from_real
from torch_tiny.lower.conditions import require
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.movement import stack
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.shapes import arange, full, pad, total
from torch_tiny.lower.sort import sort
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import cut, int_shape

V = TypeVar("V", UOp, Complex)
Batch = tuple[int, ...]
Span = tuple[int, int]

TYPES = (dtypes.float32, dtypes.float64)
INT = (dtypes.int32, 1)
"""A number for each matrix, as a result of a kernel."""

# Larger matrices are halved until they are no larger: a kernel for each piece, the rest products.
BLOCK = 128
# Reflections of more columns, or rows, are put together into products.
PANEL = 256


# --- numbers ---


def each(a: V, function: Callable[[UOp], UOp]) -> V:
    """The function of a, or of both of its parts."""
    return a.each(function) if isinstance(a, Complex) else function(a)


def real(a: V) -> UOp:
    return a.re if isinstance(a, Complex) else a


def shape_of(a: V) -> tuple[int, ...]:
    return int_shape(real(a))


def like(a: V, value: UOp) -> V:
    """A real value as a number of a's kind."""
    return from_real(value) if isinstance(a, Complex) else value


def filled_like(a: V, shape: Sequence[int], value: int) -> V:
    return like(a, full(shape, value, real(a).dtype))


def nothing(a: V) -> V:
    """Where there is no matrix."""
    return filled_like(a, (0,), 0)


def either(mask: UOp, yes: V, no: V) -> V:
    return choose(mask, yes, no) if isinstance(yes, Complex) else mask.where(yes, no)


def adjoint(a: V) -> V:
    turned = a.transpose(-1, -2)
    return turned.conj() if isinstance(turned, Complex) else turned


def multiplied(a: V, b: V) -> V:
    if not isinstance(a, Complex):
        return matmul(a, b)
    re = matmul(a.re, b.re) - matmul(a.im, b.im)
    return Complex(re, matmul(a.re, b.im) + matmul(a.im, b.re)).contiguous()


def inner(a: V, b: V) -> UOp:
    """The real part of conj(a) b, element by element."""
    return a.re * b.re + a.im * b.im if isinstance(a, Complex) else a * b


def magnitude(a: V) -> UOp:
    return a.abs() if isinstance(a, Complex) else call("fabs", a)


def phase(a: V) -> V:
    """Of length 1 in the direction of a; 0 for 0."""
    if isinstance(a, Complex):
        size = a.abs()
        one = size.eq(0).where(full((), 1, size.dtype), size)
        return choose(is_zero(a), filled(a, 0.0), a.each(lambda part: part / one))
    one = full(int_shape(a), 1, a.dtype)
    return (a < 0).where(-one, (a > 0).where(one, full((), 0, a.dtype)))


def product_of(a: V) -> V:
    """Along the last dimension."""
    return complex_rules.complex_product(a, -1) if isinstance(a, Complex) else reduce.product(a, -1)


def require_finite(a: V) -> None:
    for part in (a.re, a.im) if isinstance(a, Complex) else (a,):
        require((part * 0.0).eq(0))


# --- kernels ---


def run_on(
    name: str, numbers: Sequence[int], batch: Batch,
    results: Sequence[tuple[DType, int]], given: Sequence[UOp | Complex],
) -> list[UOp]:  # fmt: skip
    """The parts of a complex matrix lie one after the other."""
    kind = COMPLEX if any(isinstance(x, Complex) for x in given) else ""
    flat = [stack([x.re, x.im], len(batch)) if isinstance(x, Complex) else x for x in given]
    if any(x.dtype not in (*TYPES, dtypes.int32) for x in flat):
        raise NoLowering("factorizations are of float32 and float64")
    return run(kind + name, [int(v) for v in numbers], math.prod(batch), results, flat)


def room(a: V, size: int) -> tuple[DType, int]:
    """For so many numbers of a's kind, as a result of a kernel."""
    return real(a).dtype, 2 * size if isinstance(a, Complex) else size


def by_rows(flat: UOp, a: V, batch: Batch, *sizes: int) -> V:
    """A result of a kernel as numbers of a's kind."""
    if not isinstance(a, Complex):
        return flat.reshape((*batch, *sizes))
    return from_both(flat.reshape((*batch, 2, *sizes)), len(batch))


def by_columns(flat: UOp, a: V, batch: Batch, m: int, n: int) -> V:
    return by_rows(flat, a, batch, n, m).transpose(-1, -2)


# --- sizes and pieces ---


def sizes_of(a: V) -> tuple[Batch, int, int]:
    if real(a).dtype not in TYPES:
        raise NoLowering("factorizations are of float32 and float64")
    *batch, m, n = shape_of(a)
    return tuple(batch), m, n


def common_batch(a: V, b: V) -> Batch:
    return np.broadcast_shapes(shape_of(a)[:-2], shape_of(b)[:-2])


def sized(batch: Batch, *sizes: int) -> tuple[int, ...]:
    return (*batch, *sizes)


def is_large(a: V, size: int, limit: int = BLOCK) -> bool:
    """Whether products are to do the work; four for one, of complex matrices, are slower."""
    return size > limit and not isinstance(a, Complex)


def half_of(n: int) -> int:
    """So that equal pieces come up again and again: they share their kernels."""
    return -(-n // 2 // 64) * 64


def part_of(x: V, rows: Span, columns: Span) -> V:
    return x.shrink((*(None for _ in x.shape[:-2]), rows, columns))


def grown(x: V, rows: int, columns: int, value: int = 0) -> V:
    """So many rows and columns more."""
    around = [*[(0, 0)] * (x.ndim - 2), (0, rows), (0, columns)]
    return each(x, lambda part: pad(part, around, value))


def side_by_side(parts: Sequence[V], dim: int) -> V:
    first = parts[0]
    if isinstance(first, Complex):
        re, im = (side_by_side([getattr(p, part) for p in parts], dim) for part in ("re", "im"))
        return Complex(re, im)
    return first.cat(*parts[1:], dim=dim)


def joined(blocks: Sequence[Sequence[V]]) -> V:
    return side_by_side([side_by_side(row, -1) for row in blocks], -2)


def below_diagonal(m: int, n: int) -> UOp:
    """(m, n): what is under the diagonal."""
    return arange(n) < arange(m).reshape((m, 1))


def upper_part(a: V) -> V:
    m, n = shape_of(a)[-2:]
    return either(below_diagonal(m, n), filled_like(a, (), 0), a) if m and n else a


def identity(batch: Batch, m: int, n: int, a: V) -> V:
    dtype = real(a).dtype
    eye = arange(m).reshape((m, 1)).eq(arange(n)) if m and n else full((m, n), 0, dtype)
    return like(a, cast(eye, dtype).reshape((*(1 for _ in batch), m, n)).expand((*batch, m, n)))


def diagonal_of(a: V) -> V:
    *batch, m, n = shape_of(a)
    if 0 in (*batch, m, n):
        return filled_like(a, (*batch, min(m, n)), 0)
    mask = arange(m).reshape((m, 1)).eq(arange(n))

    def diagonal(x: UOp) -> UOp:
        picked = mask.where(x, full((), 0, x.dtype)).sum((x.ndim - 1,), dtype=x.dtype)
        return cut(picked, picked.ndim - 1, 0, min(m, n))

    return each(a, diagonal)


# --- pivots and errors ---


def first_info(info: UOp, later: UOp, after: int) -> UOp:
    return info.ne(0).where(info, later.ne(0).where(later + after, later))


def row_order(pivots: UOp, m: int) -> UOp:
    """Which row of A is row i of the permuted matrix."""
    *batch, count = int_shape(pivots)
    (places,) = run_on("permutation", (m, count), tuple(batch), [(dtypes.int32, m)], [pivots])
    return places.reshape((*batch, m))


def rows_permuted(x: V, pivots: UOp, back: bool = False) -> V:
    """The rows of x swapped as the pivots say, or swapped back."""
    shape = shape_of(x)
    order = row_order(pivots, shape[-2])
    if back:
        order = sort(order, -1, False)[1].cast(dtypes.int32)
    at = order.unsqueeze(-1).expand(shape)
    return each(x, lambda part: gathered(part, len(shape) - 2, at))


def sign_of(pivots: UOp, dtype: DType) -> UOp:
    """-1 for an odd number of swaps."""
    n = int_shape(pivots)[-1]
    swaps = total(pivots.ne(arange(n) + 1).cast(dtypes.int32), (pivots.ndim - 1,))
    odd = (swaps % 2).ne(0)
    return odd.where(full((), -1, dtype), full((), 1, dtype))


def checked(rule: Callable[..., Any], *args: Any) -> Any:
    """An operator whose last argument is check_errors, and whose last result is info."""
    *given, check_errors = args
    results = rule(*given)
    if check_errors:
        require(results[-1].eq(0))
    return results
