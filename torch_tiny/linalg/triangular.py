"""Cholesky's factor, column by column, and triangular systems, for all right-hand sides at once."""

import math

from torch_tiny.linalg.kernel import Kernel, Matrix, Scalar
from torch_tiny.uops import dtypes


def cholesky(k: Kernel, n: int, upper: bool) -> None:
    """0: L by columns (or U = L^H), 1: info, 2: A by rows. Reads one triangle of A."""
    source, home = k.matrix_in(2, n, n, True), k.matrix_in(0, n, n, False)
    if upper:
        source, home = source.adjoint(), home.adjoint()
    lower = k.loaded(home, source)
    info = k.scalar(0, dtypes.int32)
    _factor(k, lower, info, n)
    with k.loop(1, n) as j, k.each(0, j) as i:
        lower[i, j] = 0
    k.copy(home, lower)
    k.argument(1)[0] = info.get()


def _factor(k: Kernel, lower: Matrix, info: Scalar, n: int) -> None:
    with k.loop(0, n) as j:
        k.accumulate(
            lambda i: (lower, i, j), (j, n), (0, j), lambda i, c: lower[i, c] * lower[j, c].conj()
        )
        pivot = lower[j, j].re
        known = info.get().differs(0)
        info.set((known | (pivot > 0)).where(info.get(), j + 1))
        root = k.now(pivot.sqrt())
        divisor = k.now((root < math.inf).where(root, (-root).sqrt()))  # NaN, as in LAPACK
        k.barrier()
        with k.each(j, n) as i:
            lower[i, j] = i.differs(j).where(lower[i, j] / divisor, root)


def triangular_solve(k: Kernel, n: int, columns: int, upper: bool, unit: bool) -> None:
    """0: X by columns, 1: A by rows, 2: B by rows."""
    right = k.matrix_in(0, n, columns, False)
    x = k.loaded(right, k.matrix_in(2, n, columns, True))
    substitute(k, k.loaded(k.matrix_in(1, n, n, True)), x, upper, unit)
    k.copy(right, x)


def cholesky_solve(k: Kernel, n: int, columns: int, upper: bool) -> None:
    """0: X by columns, 1: L (or U) by rows, 2: B by rows."""
    right = k.matrix_in(0, n, columns, False)
    x = k.loaded(right, k.matrix_in(2, n, columns, True))
    factor = k.loaded(k.matrix_in(1, n, n, True))
    lower = factor.adjoint() if upper else factor
    substitute(k, lower, x, upper=False, unit=False)
    substitute(k, lower.adjoint(), x, upper=True, unit=False)
    k.copy(right, x)


def substitute(k: Kernel, a: Matrix, x: Matrix, upper: bool, unit: bool) -> None:
    """x becomes the solution. Of `a` one triangle is read."""
    n = a.rows
    with k.loop(0, n) as step:
        row = n - 1 - step if upper else step
        if not unit:
            pivot = a[row, row]
            with k.each(0, x.columns) as c:
                x[row, c] = x[row, c] / pivot
        rest = (0, row) if upper else (row + 1, n)
        k.rank_one(x, rest, (0, x.columns), lambda i: a[i, row], lambda c: x[row, c])
