"""The exponential of a matrix: a Taylor polynomial of a small part of it, squared again."""

from torch_tiny.linalg.kernel import Kernel, Matrix, Value
from torch_tiny.uops import dtypes

# So many terms for a matrix of norm up to 1/2 leave an error below rounding.
_TERMS = {dtypes.float32: 9, dtypes.float64: 16}
_MOST_SQUARINGS = {dtypes.float32: 140, dtypes.float64: 1040}


def exponential(k: Kernel, n: int) -> None:
    """0: the exponential by columns, 1, 2: work, 3: A by rows."""
    source, home = k.matrix_in(3, n, n, True), k.matrix_in(0, n, n, False)
    dtype = source.dtype
    power, total, spare = (k.work_matrix(k.matrix_in(number, n, n, False)) for number in (1, 0, 2))
    k.copy(power, source)
    norm, halvings = k.scalar(0, dtype), k.scalar(0, dtypes.int32)
    with k.loop(0, n) as j:
        norm.set(norm.get().max(k.total((0, n), lambda i: power[i, j].abs(), dtype)))
    factor = k.scalar(1, dtype)
    with k.loop(0, _MOST_SQUARINGS[dtype]):
        large = norm.get() > 0.5
        halvings.set(halvings.get() + large.where(k.number(1, dtypes.int32), 0))
        factor.set(factor.get() * large.where(k.number(0.5, dtype), 1))
        norm.set(norm.get() * large.where(k.number(0.5, dtype), 1))
    with k.grid((0, n), (0, n)) as (i, j):
        power[i, j] = power[i, j] * factor.get()
        total[i, j] = i.differs(j).where(0, k.number(1, dtype))
    # Horner: I + A (I + A/2 (I + A/3 ...))
    with k.loop(0, _TERMS[dtype]) as step:
        order = (_TERMS[dtype] - step).to(dtype)
        _multiply(k, spare, power, total)
        with k.grid((0, n), (0, n)) as (i, j):
            term = spare[i, j] / order
            total[i, j] = i.differs(j).where(term, term + 1)
    with k.loop(0, _MOST_SQUARINGS[dtype]) as step, k.when(halvings.get() > step):
        again = halvings.get() > step
        _multiply(k, spare, total, total)
        with k.grid((0, n), (0, n)) as (i, j):
            total[i, j] = again.where(spare[i, j], total[i, j])
    k.copy(home, total)


def _multiply(k: Kernel, to: Matrix, a: Matrix, b: Matrix) -> None:
    n = a.columns
    with k.grid((0, to.rows), (0, to.columns)) as (i, j):
        to[i, j] = 0

    def minus(i: Value, c: Value, j: Value) -> Value:
        return -(a[i, c] * b[c, j])

    with k.loop(0, to.columns) as j:
        k.accumulate(lambda i: (to, i, j), (0, to.rows), (0, n), lambda i, c: minus(i, c, j))
