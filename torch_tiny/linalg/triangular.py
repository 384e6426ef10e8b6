"""Triangular systems, for all right-hand sides at once."""

from torch_tiny.linalg.kernel import Kernel, Matrix


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
