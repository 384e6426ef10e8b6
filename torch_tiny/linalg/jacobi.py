"""Jacobi's rotations: eigenvalues of Hermitian matrices, and singular values (one-sided).

Columns meet in the rounds of a tournament, so that all pairs of a round are independent.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch_tiny.linalg.kernel import Array, Kernel, Matrix
from torch_tiny.linalg.value import Pair, Value, constant, pair
from torch_tiny.uops import DType, dtypes

_MOST_SWEEPS = 40
PRECISION = {dtypes.float32: 2.0**-24, dtypes.float64: 2.0**-53}


def eigh(k: Kernel, n: int, lower: bool, vectors: bool) -> None:
    """0: eigenvalues, ascending, 1: work, 2: vectors by columns, 3: work, last: A by rows."""
    source = k.matrix_in(4 if vectors else 2, n, n, True)
    rounds = _Rounds(k, n, source.dtype)
    work = k.work_matrix(k.matrix_in(1, n, n, False))
    turned = k.work_matrix(k.matrix_in(3, n, n, False)) if vectors else None
    k.copy(work, source if lower else source.adjoint())
    with k.loop(0, n) as j, k.each(j, n) as i:
        element = work[i, j]
        work[j, i] = i.differs(j).where(element.conj(), element.re)
    size = _largest(k, work)
    if turned is not None:
        k.set_identity(turned)

    def rotation(p: Value, q: Value) -> Rotation:
        return rotation_of(work[p, p].re, work[q, q].re, work[p, q], lambda off: off.differs(0))

    matrices = [work, *([] if turned is None else [turned]), work.adjoint()]
    rounds.play(size * PRECISION[work.dtype], rotation, matrices)
    place = rounds.in_order(lambda i: work[i, i].re)
    values = k.argument(0)
    with k.each(0, n, per_lane=True) as i:
        values[place[i]] = work[i, i].re
    if turned is not None:
        _put_in_order(k, k.matrix_in(2, n, n, False), turned, place)


def svd(k: Kernel, m: int, n: int, vectors: bool) -> None:
    """0: singular values, descending, 1: work, 2: U S by columns, 3: V by columns, 4: work,
    last: A by rows. m >= n."""
    source = k.matrix_in(5 if vectors else 2, m, n, True)
    rounds = _Rounds(k, n, source.dtype)
    lengths = k.small_array(source.dtype, n)
    work = k.work_matrix(k.matrix_in(1, m, n, False))
    turned = k.work_matrix(k.matrix_in(4, n, n, False)) if vectors else None
    k.copy(work, source)
    # Scaled, so that squares neither overflow nor vanish.
    largest = _largest(k, work)
    size = k.now((largest > 0).where(largest, 1))
    with k.grid((0, m), (0, n)) as (i, j):
        work[i, j] = work[i, j] / size
    if turned is not None:
        k.set_identity(turned)

    def rotation(p: Value, q: Value) -> Rotation:
        first, second = (
            k.total((0, m), lambda i, c=c: work[i, c].squared(), work.dtype)  # type: ignore[misc]
            for c in (p, q)
        )
        both = k.product((0, m), lambda i: work[i, p], lambda i: work[i, q], work.dtype)
        length = first.sqrt() * second.sqrt()

        def acts(off: Value) -> Value:
            return off > length * PRECISION[work.dtype]

        found = rotation_of(first, second, both, acts)
        counts = acts(found.common)
        return replace(found, common=counts.where(found.common / counts.where(length, 1), 0))

    matrices = [work, *([] if turned is None else [turned])]
    rounds.play(constant(4 * PRECISION[work.dtype], work.dtype), rotation, matrices)
    with k.each(0, n) as j:
        lengths[j] = k.total((0, m), lambda i: work[i, j].squared(), work.dtype).sqrt()
    place = rounds.in_order(lambda j: -lengths[j])
    values = k.argument(0)
    with k.each(0, n, per_lane=True) as j:
        values[place[j]] = lengths[j] * size
    if turned is not None:
        _put_in_order(k, k.matrix_in(2, m, n, False), work, place)
        _put_in_order(k, k.matrix_in(3, n, n, False), turned, place)


class _Rounds:
    """The tournament of n columns, or n + 1 of which the last does not exist."""

    def __init__(self, k: Kernel, n: int, dtype: DType) -> None:
        self.k, self.n, self.dtype = k, n, dtype
        self.pairs = (n + 1) // 2
        self.found = Rotations(k, dtype, max(self.pairs, 1))
        self.met = k.small_array(dtype, max(self.pairs, 1))
        self.place = k.small_array(dtypes.int32, n)

    def play(
        self, enough: Value, rotation: Callable[[Value, Value], "Rotation"],
        matrices: Sequence[Matrix],
    ) -> None:  # fmt: skip
        """Sweeps that turn matrices, until what pairs have in common is not more than enough."""
        k = self.k
        left = k.scalar(float("inf"), self.dtype)
        with k.loop(0, _MOST_SWEEPS), k.when(left.get() > enough):
            with k.each(0, self.pairs) as number:
                self.met[number] = 0
            with k.loop(0, max(2 * self.pairs - 1, 1)) as meeting:
                with k.each(0, self.pairs) as number, self._both(meeting, number) as (p, q):
                    found = rotation(p, q)
                    self.met[number] = self.met[number].max(found.common)
                    self.found.put(number, found)
                for matrix in matrices:
                    self._turn_columns(matrix, meeting)
            left.set(k.largest((0, self.pairs), lambda i: self.met[i], self.dtype, 0))

    def _turn_columns(self, matrix: Matrix, meeting: Value) -> None:
        with (
            self.k.grid((0, matrix.rows), (0, self.pairs)) as (i, number),
            self._both(meeting, number) as (p, q),
        ):
            matrix[i, p], matrix[i, q] = self.found.turned(number, matrix[i, p], matrix[i, q])

    def in_order(self, key: Callable[[Value], Value]) -> Array:
        """Where each belongs, ascending."""
        k = self.k
        k.barrier()
        with k.each(0, self.n) as i:
            mine = key(i)
            before = k.scalar(0, dtypes.int32)
            with k.loop(0, self.n) as j:
                other = key(j)
                is_tie = ((mine < other) | (other < mine)).where(0, constant(1, dtypes.int32))
                earlier = (j < i).where(is_tie, 0)
                before.set(before.get() + (other < mine).where(1, earlier))
            self.place[i] = before.get()
        return self.place

    @contextmanager
    def _both(self, meeting: Value, number: Value) -> Iterator[tuple[Value, Value]]:
        """Only if both players exist."""
        p, q = players(number, meeting, max(2 * self.pairs - 1, 1))
        exist = self.k.when((p < self.n) & (q < self.n)) if self.n % 2 else nullcontext()
        with exist:
            yield p, q


def players(number: Value, meeting: Value, rounds: int) -> tuple[Value, Value]:
    """Of a pair in a round."""
    first = number.differs(0).where((meeting + number) % rounds, rounds)
    return first, (meeting - number + rounds) % rounds


@dataclass(frozen=True)
class Rotation:
    """Of column p and column q, which first loses a phase if it is complex."""

    common: Value
    """The size of what they still had in common."""
    half: Value
    """The tangent of half the angle. Rounding a cosine would stretch columns bit by bit."""
    sine: Value
    phase: tuple[Value, ...]


class Rotations:
    """Those of a round, by the number of the pair, in fast memory."""

    def __init__(self, k: Kernel, dtype: DType, count: int) -> None:
        self._halves, self._sines, *self._phases = (
            k.small_array(dtype, count) for _ in range(4 if k.is_complex else 2)
        )

    def put(self, number: Value, found: Rotation) -> None:
        arrays = (self._halves, self._sines, *self._phases)
        for array, value in zip(arrays, (found.half, found.sine, *found.phase), strict=True):
            array[number] = value

    def turned(self, number: Value, first: Value, second: Value) -> tuple[Value, Value]:
        """Elements of the two columns."""
        half, sine = self._halves[number], self._sines[number]
        if self._phases:
            second = second * pair(*(part[number] for part in self._phases)).conj()
        return first - sine * (second + half * first), second + sine * (first - half * second)


def rotation_of(
    first: Value, second: Value, both: Value, is_large: Callable[[Value], Value]
) -> Rotation:
    """The one that makes `both` zero, if it is large; Golub and Van Loan, section 8.5."""
    common = both.abs()
    acts = is_large(common)
    phase: tuple[Value, ...] = ()
    if isinstance(both, Pair):
        divisor = acts.where(common, 1)
        phase = (acts.where(both.re / divisor, 1), acts.where(both.im / divisor, 0))
        both = common
    theta = (second - first) / acts.where(both + both, 1)
    root = (theta * theta + 1).sqrt()
    tangent = acts.where((theta < 0).where(-1 / (root - theta), 1 / (root + theta)), 0)
    cosine = 1 / (tangent * tangent + 1).sqrt()
    sine = tangent * cosine
    return Rotation(common, sine / (cosine + 1), sine, phase)


def _largest(k: Kernel, matrix: Matrix) -> Value:
    size = k.scalar(0, matrix.dtype)
    with k.loop(0, matrix.columns) as j:
        column = k.largest((0, matrix.rows), lambda i: matrix[i, j].size(), matrix.dtype, 0)
        size.set(size.get().max(column))
    return size.get()


def _put_in_order(k: Kernel, home: Matrix, matrix: Matrix, place: Array) -> None:
    with k.loop(0, matrix.columns) as j:
        to = place[j]
        with k.each(0, matrix.rows, per_lane=True) as i:
            home[i, to] = matrix[i, j]
