"""LU with partial pivoting, and what is solved with it."""

from torch_tiny.linalg.kernel import Array, Kernel, Matrix, Scalar
from torch_tiny.linalg.triangular import substitute
from torch_tiny.linalg.value import Value
from torch_tiny.uops import dtypes


def lu(k: Kernel, m: int, n: int) -> None:
    """0: L and U by columns, 1: pivots, 2: info, 3: A by rows."""
    source, home = k.matrix_in(3, m, n, True), k.matrix_in(0, m, n, False)
    work = k.loaded(home, source)
    info = k.scalar(0, dtypes.int32)
    _factor(k, work, k.argument(1), info)
    k.copy(home, work)
    k.argument(2)[0] = info.get()


def solve(k: Kernel, n: int, columns: int) -> None:
    """0: X, 1: L and U by columns, 2: pivots, 3: info, 4: A by rows, 5: B by rows.

    Without columns there is no B, and X is the inverse.
    """
    source, home = k.matrix_in(4, n, n, True), k.matrix_in(1, n, n, False)
    work = k.loaded(home, source)
    right = k.matrix_in(0, n, columns or n, False)
    x = k.work_matrix(right)
    if columns:
        k.copy(x, k.matrix_in(5, n, columns, True))
    else:
        k.set_identity(x)
    info = k.scalar(0, dtypes.int32)
    _factor(k, work, k.argument(2), info)
    k.barrier()
    _solve(k, work, k.argument(2), x, False)
    k.copy(home, work)
    k.copy(right, x)
    k.argument(3)[0] = info.get()


def lu_solve(k: Kernel, n: int, columns: int, adjoint: bool) -> None:
    """0: X by columns, 1: L and U by columns, 2: pivots, 3: B by rows. Of A^H X = B if adjoint."""
    work = k.loaded(k.matrix_in(1, n, n, False))
    right = k.matrix_in(0, n, columns, False)
    x = k.loaded(right, k.matrix_in(3, n, columns, True))
    _solve(k, work, k.argument(2), x, adjoint)
    k.copy(right, x)


def permutation(k: Kernel, m: int, count: int) -> None:
    """0: which row of P^T A is row i of A, 1: pivots."""
    order, pivots = k.argument(0), k.argument(1)
    with k.each(0, m) as i:
        order[i] = i
    with k.loop(0, count) as i:
        other = _other_row(pivots[i], i, m)
        mine, theirs = order[i], order[other]
        k.barrier()
        order[i] = theirs
        order[other] = mine
        k.barrier()


def _factor(k: Kernel, work: Matrix, pivots: Array, info: Scalar) -> None:
    """In place."""
    m, n = work.rows, work.columns
    with k.loop(0, min(m, n)) as j:
        row, size = k.first_largest((j, m), lambda i: work[i, j].size(), work.dtype)
        pivots[j] = row + 1
        pivot = work[row, j]
        usable = size.differs(0)  # rather than the pivot, which not all devices know to be NaN
        known = info.get().differs(0)
        info.set((known | usable).where(info.get(), j + 1))
        k.barrier()
        _swap(k, work, j, row)
        with k.each(j + 1, m) as i:
            mine = work[i, j]
            work[i, j] = usable.where(mine / pivot, mine)
        k.rank_one(work, (j + 1, m), (j + 1, n), lambda i: work[i, j], lambda c: work[j, c])


def _solve(k: Kernel, work: Matrix, pivots: Array, x: Matrix, adjoint: bool) -> None:
    """x becomes the solution."""
    n = work.rows
    if adjoint:
        substitute(k, work.adjoint(), x, upper=False, unit=False)
        substitute(k, work.adjoint(), x, upper=True, unit=True)
    with k.loop(0, n) as step:
        row = n - 1 - step if adjoint else step
        _swap(k, x, row, _other_row(pivots[row], row, n))
    if not adjoint:
        substitute(k, work, x, upper=False, unit=True)
        substitute(k, work, x, upper=True, unit=False)


def _swap(k: Kernel, matrix: Matrix, a: Value, b: Value) -> None:
    with k.each(0, matrix.columns, per_lane=True) as j:
        first, second = matrix[a, j], matrix[b, j]
        matrix[a, j] = second
        matrix[b, j] = first


def _other_row(pivot: Value, row: Value, rows: int) -> Value:
    """A pivot that is none must not lead out of the matrix."""
    return ((pivot > 0) & (pivot < rows + 1)).where(pivot - 1, row)
