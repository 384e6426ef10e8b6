"""Jacobi's rotations of large matrices: blocks of columns meet, and products turn the matrix.

In each round of a tournament every pair of blocks finds the rotations of its own small problem, one
sweep of them, put together into one orthogonal matrix. Then all tiles are multiplied by those.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch_tiny.linalg.jacobi import PRECISION, Rotations, players, rotation_of
from torch_tiny.linalg.kernel import Array, Kernel, Matrix
from torch_tiny.linalg.sequence import Repeated, Step, Steps
from torch_tiny.linalg.value import Value, constant, index, pair, unit
from torch_tiny.uops import dtypes

MOST_SWEEPS = 20
# Of a group. Each has an equal part of a tile; PoCL 3 spoils inner products that some threads skip.
_THREADS = 128
# In units of rounding, below which nothing is turned: products leave about as much behind.
_ENOUGH = 8
_ENOUGH_OF_LARGEST = 2


def block_jacobi(n: int, width: int, two_sided: bool) -> Steps:
    """0: the matrix, turned, 1: rotations of each pair, 2: numbers of the pairs, 3: the product of
    all rotations, 4: the matrix to begin with, 5: its size. All by rows.

    n: rows and columns, a multiple of width, which two blocks have together. two_sided: rows too
    are turned, else columns become orthogonal. size: about the norm.
    """
    work = _Blocks(n, width, two_sided)
    tiles = work.pairs * work.pairs
    rounds = [Step(work.find, work.pairs), Step(work.turn, 2 * tiles)]
    sweep: Steps = [Repeated(work.rounds, rounds), Step(work.check, work.pairs)]
    return [Step(work.begin, work.pairs), Repeated(MOST_SWEEPS, sweep)]


@dataclass(frozen=True)
class _Blocks:
    n: int
    width: int
    two_sided: bool

    @property
    def pairs(self) -> int:
        return self.n // self.width

    @property
    def rounds(self) -> int:
        return 2 * self.pairs - 1

    @property
    def at_once(self) -> int:
        """Neighbours that a thread computes: what it reads of the other factor serves all."""
        return max(1, self.width * self.width // _THREADS)

    # --- the steps ---

    def begin(self, k: Kernel, part: Value) -> None:
        matrix, vectors, given = (self._matrix(k, argument) for argument in (0, 3, 4))
        numbers = self._numbers(k, part)
        numbers.meeting = index(self.rounds - 1)
        numbers.acts, numbers.has_acted, numbers.is_done = index(0), index(0), index(0)
        with k.each(0, self.width * self.n) as e:
            i, j = part * self.width + e // self.n, e % self.n
            matrix[i, j] = given[i, j]
            vectors[i, j] = unit(i, j, matrix.dtype)

    def find(self, k: Kernel, part: Value) -> None:
        """The rotations of a pair in the next round."""
        w, half = self.width, self.width // 2
        numbers = self._numbers(k, part)
        with k.when(numbers.is_done < 1):
            meeting = k.now((numbers.meeting + 1) % self.rounds)
            before = k.now(meeting.differs(0).where(numbers.has_acted, 0))
            k.barrier()
            numbers.meeting = meeting
            small, turned = self._tile(k, w | 1), self._tile(k, w | 1)
            acts = self._acts(k)
            self._load(k, small, self._places(k, part, meeting))
            with k.each(0, w * w) as e:
                i, j = e // w, e % w
                turned[i, j] = unit(i, j, turned.dtype)

            def is_left(e: Value) -> Value:
                i, j = e // w, e % w
                found = acts(small[i, i].re, small[j, j].re, small[i, j].abs()) & i.differs(j)
                return found.where(constant(1, dtypes.int32), 0)

            left = k.largest((0, w * w), is_left, dtypes.int32, 0)
            numbers.acts = left
            numbers.has_acted = before.max(left)
            with k.when(left > 0):
                found = _Found(k, small, half)
                with k.loop(0, w - 1) as round_:
                    found.sweep(round_, acts)
                    found.turn(round_, turned)
                self._store(k, part, small, turned)

    def turn(self, k: Kernel, part: Value) -> None:
        """A tile of the matrix, or of the vectors."""
        w, tiles = self.width, self.pairs * self.pairs
        tile, right = self._tile(k, w | 1), self._tile(k, w)
        left = self._tile(k, w) if self.two_sided else right
        row, column = part % tiles // self.pairs, part % self.pairs
        if self.two_sided:
            with k.when((part < tiles) & (row < column + 1)):
                self._turn_both(k, row, column, tile, left, right)
        else:
            with k.when(part < tiles):
                self._turn_columns(k, self._matrix(k, 0), row, column, tile, right)
        with k.when(part > tiles - 1):
            self._turn_columns(k, self._matrix(k, 3), row, column, tile, right)

    def check(self, k: Kernel, part: Value) -> None:
        """Whether a sweep found nothing to do."""
        array = k.argument(2)
        acted = k.largest((0, self.pairs), lambda i: array[i + 2 * self.pairs], dtypes.int32, 0)
        self._numbers(k, part).is_done = 1 - acted

    # --- pieces ---

    def _matrix(self, k: Kernel, argument: int) -> Matrix:
        return k.matrix_in(argument, self.n, self.n, True)

    def _rotations(self, k: Kernel) -> Matrix:
        return k.matrix_in(1, self.n, self.width, True)

    def _numbers(self, k: Kernel, part: Value) -> "_Numbers":
        return _Numbers(k.argument(2), part, self.pairs)

    def _tile(self, k: Kernel, stride: int) -> Matrix:
        w = self.width
        array = k.small_array(self._matrix(k, 0).dtype, w * stride * (2 if k.is_complex else 1))
        return Matrix(array, w, w, (stride, 1), w * stride if k.is_complex else None)

    def _places(self, k: Kernel, part: Value, meeting: Value) -> Callable[[Value], Value]:
        """Of the columns of a pair."""
        half = self.width // 2
        first, second = players(part, meeting, self.rounds)
        first, second = k.now(first * half), k.now(second * half - half)
        return lambda i: (i < half).where(first + i, second + i)

    def _acts(self, k: Kernel) -> Callable[[Value, Value, Value], Value]:
        """Whether what two columns have in common is to be turned away, given their squares.

        Columns that are as short as rounding errors need not be orthogonal.
        """
        size = k.now(k.argument(5)[0])
        unit = PRECISION[size.dtype]
        if self.two_sided:
            return lambda _first, _second, common: common > size * (_ENOUGH * unit)

        def acts(first: Value, second: Value, common: Value) -> Value:
            a, b = first.sqrt(), second.sqrt()
            long, short = a.max(b), (a < b).where(a, b)
            least = (short * _ENOUGH).max(size * _ENOUGH_OF_LARGEST)
            return common > long * (least * unit)

        return acts

    def _load(self, k: Kernel, small: Matrix, place: Callable[[Value], Value]) -> None:
        """The tile of a pair, or the inner products of its columns."""
        w, matrix = self.width, self._matrix(k, 0)
        if self.two_sided:
            with k.each(0, w * w) as e:
                i, j = e // w, e % w
                small[i, j] = matrix[place(i), place(j)]
            return
        with k.each(0, w * w // self.at_once) as e:
            i, j = e % w, e // w * self.at_once
            mine, others = place(i), place(j)
            sums = self._products(
                k, self.n, lambda r: matrix[r, mine].conj(), lambda r, t: matrix[r, others + t]
            )
            for t, value in enumerate(sums):
                small[i, j + t] = value

    def _store(self, k: Kernel, part: Value, spare: Matrix, turned: Matrix) -> None:
        """Q + Q (1 - Q^H Q) / 2: what rounding took from its being orthogonal is given back."""
        w, home = self.width, self._rotations(k)
        with k.each(0, w * w // self.at_once) as e:
            i, j = e % w, e // w * self.at_once
            sums = self._products(
                k, w, lambda c: turned[c, i].conj(), lambda c, t: turned[c, j + t]
            )
            for t, value in enumerate(sums):
                spare[i, j + t] = (i.differs(j + t).where(-value, 1 - value)) * 0.5
        with k.each(0, w * w // self.at_once) as e:
            i, j = e % w, e // w * self.at_once
            sums = self._products(k, w, lambda c: turned[i, c], lambda c, t: spare[c, j + t])
            for t, value in enumerate(sums):
                home[part * w + i, j + t] = turned[i, j + t] + value

    def _turn_columns(
        self, k: Kernel, matrix: Matrix, row: Value, column: Value, tile: Matrix, right: Matrix
    ) -> None:
        w, numbers = self.width, self._numbers(k, column)
        with k.when(numbers.acts > 0):
            place = self._places(k, column, numbers.meeting)
            with k.each(0, w * w) as e:
                i, j = e // w, e % w
                tile[i, j] = matrix[row * w + i, place(j)]
                right[i, j] = self._rotations(k)[column * w + i, j]
            with k.each(0, w * w // self.at_once) as e:
                i, j = e % w, e // w * self.at_once
                sums = self._products(k, w, lambda c: tile[i, c], lambda c, t: right[c, j + t])
                to = place(j)
                for t, value in enumerate(sums):
                    matrix[row * w + i, to + t] = value

    def _turn_both(
        self, k: Kernel, row: Value, column: Value, tile: Matrix, left: Matrix, right: Matrix
    ) -> None:
        """A tile, and the one across the diagonal, which is its adjoint."""
        w, matrix, rotations = self.width, self._matrix(k, 0), self._rotations(k)
        above, beside = self._numbers(k, row), self._numbers(k, column)
        with k.when(above.acts + beside.acts > 0):
            rows = self._places(k, row, above.meeting)
            columns = self._places(k, column, beside.meeting)
            has_rows, has_columns = k.now(above.acts > 0), k.now(beside.acts > 0)
            with k.each(0, w * w) as e:
                i, j = e // w, e % w
                one = unit(i, j, tile.dtype)
                left[i, j] = has_rows.where(rotations[row * w + i, j], one)
                right[i, j] = has_columns.where(rotations[column * w + i, j], one)
            with k.each(0, w * w // self.at_once) as e:
                i, j = e % w, e // w * self.at_once
                mine = rows(i)
                sums = self._products(
                    k,
                    w,
                    lambda c: matrix[columns(c), mine].conj(),
                    lambda c, t: right[c, j + t],
                )
                for t, value in enumerate(sums):
                    tile[i, j + t] = value
            with k.each(0, w * w // self.at_once) as e:
                i, j = e % w, e // w * self.at_once
                sums = self._products(
                    k, w, lambda c: left[c, i].conj(), lambda c, t: tile[c, j + t]
                )
                mine, others = rows(i), columns(j)
                for t, value in enumerate(sums):
                    matrix[mine, others + t] = value
                with k.when(row < column):
                    for t, value in enumerate(sums):
                        matrix[others + t, mine] = value.conj()

    def _products(
        self, k: Kernel, count: int, mine: Callable[[Value], Value],
        others: Callable[[Value, int], Value],
    ) -> list[Value]:  # fmt: skip
        """Sums of mine(c) others(c, t), for neighbours t. A thread's own work."""
        zero = constant(0, self._matrix(k, 0).dtype)
        start = pair(zero, zero) if k.is_complex else zero
        sums = [k.scalar(start, zero.dtype) for _ in range(self.at_once)]
        with k.loop(0, count) as c:
            one = k.now(mine(c))
            for t, total in enumerate(sums):
                total.set(total.get() + one * others(c, t))
        return [total.get() for total in sums]


class _Numbers:
    """What is remembered of a pair between steps."""

    def __init__(self, array: Array, part: Value, pairs: int) -> None:
        self._array, self._part, self._pairs = array, part, pairs

    def _get(self, field: int) -> Value:
        return self._array[self._part + field * self._pairs]

    def _set(self, field: int, value: Value) -> None:
        self._array[self._part + field * self._pairs] = value

    meeting = property(lambda self: self._get(0), lambda self, value: self._set(0, value))
    acts = property(lambda self: self._get(1), lambda self, value: self._set(1, value))
    has_acted = property(lambda self: self._get(2), lambda self, value: self._set(2, value))
    is_done = property(lambda self: self._get(3), lambda self, value: self._set(3, value))


class _Found:
    """Rotations of a small Hermitian matrix, a round at a time."""

    def __init__(self, k: Kernel, small: Matrix, pairs: int) -> None:
        self.k, self.small, self.pairs = k, small, pairs
        self.rotations = Rotations(k, small.dtype, pairs)

    def sweep(self, meeting: Value, acts: Callable[[Value, Value, Value], Value]) -> None:
        """Finds the rotations of a round, and turns the matrix by them."""
        k, small = self.k, self.small
        with k.each(0, self.pairs) as number:
            p, q = self._players(number, meeting)
            first, second = small[p, p].re, small[q, q].re
            found = rotation_of(
                first, second, small[p, q], lambda common: acts(first, second, common)
            )
            self.rotations.put(number, found)
        with k.each(0, self.pairs * self.pairs) as e:
            above, beside = e // self.pairs, e % self.pairs
            (p, q), (r, s) = self._players(above, meeting), self._players(beside, meeting)
            turned = self.rotations.turned
            a, b = turned(beside, small[p, r], small[p, s])
            c, d = turned(beside, small[q, r], small[q, s])
            a, c = (x.conj() for x in turned(above, a.conj(), c.conj()))
            b, d = (x.conj() for x in turned(above, b.conj(), d.conj()))
            small[p, r], small[p, s], small[q, r], small[q, s] = a, b, c, d

    def turn(self, meeting: Value, matrix: Matrix) -> None:
        """Another matrix's columns."""
        with self.k.each(0, 2 * self.pairs * self.pairs) as e:
            i, number = e // self.pairs, e % self.pairs
            p, q = self._players(number, meeting)
            matrix[i, p], matrix[i, q] = self.rotations.turned(number, matrix[i, p], matrix[i, q])

    def _players(self, number: Value, meeting: Value) -> tuple[Value, Value]:
        return players(number, meeting, 2 * self.pairs - 1)
