"""The exponential of a matrix: a Taylor polynomial of a small part of it, squared again."""

from torch_tiny.linalg.kernel import Kernel, Matrix, Style
from torch_tiny.linalg.value import constant
from torch_tiny.uops import dtypes

# Up to this norm 21 terms leave an error below rounding; the fewer squarings, the less of that.
_ENOUGH = {dtypes.float32: 3.01, dtypes.float64: 1.09}
_MOST_SQUARINGS = {dtypes.float32: 140, dtypes.float64: 1040}
_GROUPS = 7  # of three terms


def exponential(k: Kernel, n: int) -> None:
    """0: the exponential by columns, 1 to 4: work, 5: A by rows."""
    source, home = k.matrix_in(5, n, n, True), k.matrix_in(0, n, n, False)
    dtype = source.dtype
    total, spare, *powers = (k.work_matrix(k.matrix_in(i, n, n, False)) for i in range(5))
    first, second, third = powers
    k.copy(first, source)
    norm, halvings = k.scalar(0, dtype), k.scalar(0, dtypes.int32)
    with k.loop(0, n) as j:
        norm.set(norm.get().max(k.total((0, n), lambda i: first[i, j].abs(), dtype)))
    factor = k.scalar(1, dtype)
    with k.loop(0, _MOST_SQUARINGS[dtype]):
        large = norm.get() > _ENOUGH[dtype]
        halvings.set(halvings.get() + large.where(constant(1, dtypes.int32), 0))
        for scaled in (factor, norm):
            scaled.set(scaled.get() * large.where(constant(0.5, dtype), 1))
    with k.grid((0, n), (0, n)) as (i, j):
        first[i, j] = first[i, j] * factor.get()
        total[i, j] = 0
    _multiply(k, second, first, first)
    _multiply(k, third, second, first)
    # Paterson and Stockmeyer, as Horner: I + A/a + A^2/ab + A^3/abc (the same of the next a, b, c)
    with k.loop(0, _GROUPS) as step:
        order = 3 * (_GROUPS - 1 - step)
        a, b, c = ((order + term).to(dtype) for term in (1, 2, 3))
        _multiply(k, spare, total, third)
        with k.grid((0, n), (0, n)) as (i, j):
            rest = first[i, j] / a + (second[i, j] + spare[i, j] / c) / (a * b)
            total[i, j] = i.differs(j).where(rest, rest + 1)
    with k.loop(0, _MOST_SQUARINGS[dtype]) as step, k.when(halvings.get() > step):
        again = halvings.get() > step
        _multiply(k, spare, total, total)
        with k.grid((0, n), (0, n)) as (i, j):
            total[i, j] = again.where(spare[i, j], total[i, j])
    k.copy(home, total)


def _multiply(k: Kernel, to: Matrix, a: Matrix, b: Matrix) -> None:
    n = a.columns
    if k.style is Style.THREADS:  # an element for each, with no need to wait in between
        with k.each(0, to.rows * to.columns) as e:
            i, j = e % to.rows, e // to.rows
            to[i, j] = k.total((0, n), lambda c: a[i, c] * b[c, j], to.dtype)
        return
    with k.grid((0, to.rows), (0, to.columns)) as (i, j):
        to[i, j] = 0
    with k.loop(0, to.columns) as j:
        k.accumulate(lambda i: (to, i, j), (0, to.rows), (0, n), lambda i, c: -(a[i, c] * b[c, j]))
