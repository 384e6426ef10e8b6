"""Pieces of batches of matrices, and the door to the kernels of torch_tiny.linalg."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_tiny.linalg.routine import run
from torch_tiny.lower.conditions import require
from torch_tiny.lower.pick import gathered
from torch_tiny.lower.promote import NoLowering, cast
from torch_tiny.lower.sort import sort
from torch_tiny.lower.tools import arange, cut, full, total
from torch_tiny.uops import DType, UOp, dtypes
from torch_tiny.views import int_shape

TYPES = (dtypes.float32, dtypes.float64)
INT = (dtypes.int32, 1)
"""A number for each matrix, as a result of a kernel."""


# Larger matrices are halved until they are no larger: a kernel for each piece, the rest products.
BLOCK = 128
# Reflections of more columns, or rows, are put together into products.
PANEL = 256


def half_of(n: int) -> int:
    """So that equal pieces come up again and again: they share their kernels."""
    return -(-n // 2 // 64) * 64


def part_of(x: UOp, rows: tuple[int, int], columns: tuple[int, int]) -> UOp:
    return x.shrink((*(None for _ in x.shape[:-2]), rows, columns))


def side_by_side(parts: Sequence[UOp], dim: int) -> UOp:
    return parts[0].cat(*parts[1:], dim=dim)


def joined(blocks: Sequence[Sequence[UOp]]) -> UOp:
    return side_by_side([side_by_side(row, -1) for row in blocks], -2)


def first_info(info: UOp, later: UOp, after: int) -> UOp:
    return info.ne(0).where(info, later.ne(0).where(later + after, later))


def row_order(pivots: UOp, m: int) -> UOp:
    """Which row of A is row i of the permuted matrix."""
    *batch, count = int_shape(pivots)
    (places,) = run_on("permutation", (m, count), tuple(batch), [(dtypes.int32, m)], [pivots])
    return places.reshape((*batch, m))


def rows_permuted(x: UOp, pivots: UOp, back: bool = False) -> UOp:
    """The rows of x swapped as the pivots say, or swapped back."""
    m = int_shape(x)[-2]
    order = row_order(pivots, m)
    if back:
        order = sort(order, -1, False)[1].cast(dtypes.int32)
    return gathered(x, x.ndim - 2, order.unsqueeze(-1).expand(int_shape(x)))


def is_finite(a: UOp) -> UOp:
    return (a * 0.0).eq(0)


def run_on(
    name: str, numbers: Sequence[int], batch: tuple[int, ...],
    results: Sequence[tuple[DType, int]], given: Sequence[UOp],
) -> list[UOp]:  # fmt: skip
    if any(x.dtype not in (*TYPES, dtypes.int32) for x in given):
        raise NoLowering("factorizations are of float32 and float64")
    return run(name, [int(v) for v in numbers], math.prod(batch), results, given)


def sizes_of(a: UOp) -> tuple[tuple[int, ...], int, int]:
    if a.dtype not in TYPES:
        raise NoLowering("factorizations are of float32 and float64")
    *batch, m, n = int_shape(a)
    return tuple(batch), m, n


def common_batch(a: UOp, b: UOp) -> tuple[int, ...]:
    shapes = [int_shape(x)[:-2] for x in (a, b)]
    ndim = max(len(s) for s in shapes)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


def by_columns(flat: UOp, batch: tuple[int, ...], m: int, n: int) -> UOp:
    return flat.reshape((*batch, n, m)).transpose(-1, -2)


def identity(batch: tuple[int, ...], m: int, n: int, dtype: DType) -> UOp:
    eye = arange(m).reshape((m, 1)).eq(arange(n)) if m and n else full((m, n), 0, dtype)
    return cast(eye, dtype).reshape((*(1 for _ in batch), m, n)).expand((*batch, m, n))


def diagonal_of(a: UOp) -> UOp:
    *batch, m, n = int_shape(a)
    if 0 in a.shape:
        return full((*batch, min(m, n)), 0, a.dtype)
    mask = arange(m).reshape((m, 1)).eq(arange(n))
    picked = mask.where(a, full((), 0, a.dtype)).sum((a.ndim - 1,), dtype=a.dtype)
    return cut(picked, picked.ndim - 1, 0, min(m, n))


def sign_of(pivots: UOp, dtype: DType) -> UOp:
    """-1 for an odd number of swaps."""
    n = int_shape(pivots)[-1]
    swaps = total(pivots.ne(arange(n) + 1).cast(dtypes.int32), (pivots.ndim - 1,))
    odd = (swaps % 2).ne(0)
    return odd.where(full((), -1, dtype), full((), 1, dtype))


def checked(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For an operator whose last argument is check_errors, and whose last result is info."""

    def apply(*args: Any) -> Any:
        *given, check_errors = args
        results = rule(*given)
        if check_errors:
            require(results[-1].eq(0))
        return results

    return apply
