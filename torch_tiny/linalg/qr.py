"""Householder's reflections: QR as LAPACK's geqrf, and products with Q."""

from torch_tiny.linalg.kernel import Kernel, Matrix
from torch_tiny.linalg.value import Pair, Value


def geqrf(k: Kernel, m: int, n: int) -> None:
    """0: R above, reflections below the diagonal, by columns, 1: their factors, 2: A by rows."""
    home = k.matrix_in(0, m, n, False)
    work = k.loaded(home, k.matrix_in(2, m, n, True))
    factors = k.matrix_in(1, min(m, n), 1, False)
    with k.loop(0, min(m, n)) as c:
        factors[c, 0] = _reflect_column(k, work, c)
    k.copy(home, work)


def reflect(k: Kernel, m: int, count: int, columns: int, forward: bool, given: bool) -> None:
    """0: Q X by columns, 1: reflections by columns, 2: their factors, 3: X by rows, if given.

    Else X is the identity. forward: Q^H X. Every column of X is on its own.
    """
    home = k.matrix_in(0, m, columns, False)
    x, work = k.work_matrix(home), k.loaded(k.matrix_in(1, m, count, False))
    factors = k.matrix_in(2, count, 1, False)
    if given:
        k.copy(x, k.matrix_in(3, m, columns, True))
    else:
        k.set_identity(x)
    with k.each(0, columns) as j, k.loop(0, count) as step:
        c = step if forward else count - 1 - step
        factor = factors[c, 0]
        _apply(k, work, c, factor.conj() if forward else factor, x, j)
    k.copy(home, x)


def _reflect_column(k: Kernel, work: Matrix, c: Value) -> Value:
    """Makes what is below the diagonal of column c zero; the factor of the reflection."""
    m, dtype = work.rows, work.dtype
    # Scaled, so that squares neither overflow nor vanish.
    scale = k.largest((c, m), lambda i: work[i, c].size(), dtype, 0)
    usable = k.now((scale > 0).where(scale, 1))
    below = k.total((c + 1, m), lambda i: (work[i, c] / usable).squared(), dtype)
    alpha = work[c, c]
    head = alpha / usable
    length = (head.squared() + below).sqrt()
    beta = (head.re < 0).where(length, -length)
    acts = below.differs(0)
    if isinstance(head, Pair):
        acts = acts | head.im.differs(0)
    factor = k.now(acts.where((beta - head) / acts.where(beta, 1), 0))
    divisor = k.now(acts.where(head - beta, 1))
    diagonal = k.now(acts.where(beta * usable, alpha))
    k.barrier()
    with k.each(c, m) as i:
        work[i, c] = i.differs(c).where(work[i, c] / usable / divisor, diagonal)
    with k.each(c + 1, work.columns) as j:
        _apply(k, work, c, factor.conj(), work, j)
    return factor


def _apply(k: Kernel, reflections: Matrix, c: Value, factor: Value, x: Matrix, j: Value) -> None:
    """Column j of x after reflection c. A thread's own work."""
    m = x.rows
    inside = k.product((c + 1, m), lambda i: reflections[i, c], lambda i: x[i, j], x.dtype)
    head = x[c, j]
    along = factor * (head + inside)
    x[c, j] = head - along
    with k.each(c + 1, m) as i:
        x[i, j] = x[i, j] - reflections[i, c] * along
