"""Pieces of batches of complex matrices, as matrices.py has them of real ones."""

import math
from collections.abc import Sequence

from torch_tiny.linalg.routine import COMPLEX, run
from torch_tiny.lower.complex_value import Complex
from torch_tiny.lower.conditions import require
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.matrices import is_finite
from torch_tiny.lower.movement import stack
from torch_tiny.lower.promote import NoLowering
from torch_tiny.lower.tools import cut, full
from torch_tiny.uops import DType, UOp, dtypes

Batch = tuple[int, ...]


def run_on(
    name: str, numbers: Sequence[int], batch: Batch,
    results: Sequence[tuple[DType, int]], given: Sequence[Complex | UOp],
) -> list[UOp]:  # fmt: skip
    flat = [stack([x.re, x.im], x.ndim - 2) if isinstance(x, Complex) else x for x in given]
    numbers = [int(v) for v in numbers]
    return run(COMPLEX + name, numbers, math.prod(batch), results, flat)


def sizes_of(a: Complex) -> tuple[Batch, int, int]:
    if a.re.dtype not in (dtypes.float32, dtypes.float64):
        raise NoLowering("factorizations are of float32 and float64")
    *batch, m, n = a.shape
    return tuple(batch), m, n


def by_columns(flat: UOp, batch: Batch, m: int, n: int) -> Complex:
    both = flat.reshape((*batch, 2, n, m)).transpose(-1, -2)
    at = len(batch)
    re, im = (cut(both, at, part, part + 1).squeeze(at) for part in range(2))
    return Complex(re, im)


def transposed(a: Complex) -> Complex:
    return a.each(lambda p: p.transpose(-1, -2))


def adjoint_of(a: Complex) -> Complex:
    return transposed(a).conj()


def nothing(shape: tuple[int, ...], part: DType) -> Complex:
    return Complex(full(shape, 0, part), full(shape, 0, part))


def require_finite(a: Complex) -> None:
    require(is_finite(a.re))
    require(is_finite(a.im))


def multiplied(a: Complex, b: Complex) -> Complex:
    return Complex(
        matmul(a.re, b.re) - matmul(a.im, b.im), matmul(a.re, b.im) + matmul(a.im, b.re)
    ).each(lambda p: p.contiguous())
