"""A small language for factorizations: loops over one matrix, written once, emitted as UOps.

A routine describes the work on one matrix of a batch. `each` loops have independent iterations and
`loop`s run in order. How that becomes a kernel is the style's business:

serial   one matrix after another; the innermost independent loop is for the vector unit
lanes    the vector unit's lanes hold a matrix each, work memory is interleaved
threads  a group of threads has a matrix, shares its `each` loops and meets at barriers
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from torch_tiny.linalg.value import Index, Operand, Pair, Span, Value, constant, index, pair, unit
from torch_tiny.uops import AddrSpace, AxisType, DType, Ops, UOp, combined, dtypes


class Style(enum.Enum):
    SERIAL = "serial"
    LANES = "lanes"
    THREADS = "threads"


# What loops mean to the renderers.
MATRICES, EACH, PER_LANE, REDUCE, IN_ORDER = (
    AxisType.GLOBAL,
    AxisType.LOCAL,
    AxisType.UPCAST,
    AxisType.REDUCE,
    AxisType.LOOP,
)
COMBINE = "group_"


@dataclass(frozen=True)
class Array:
    """Memory of one matrix: its part of an argument, or scratch while the kernel runs."""

    kernel: "Kernel"
    memory: UOp
    base: Value | None = None

    def __getitem__(self, at: Index) -> Value:
        return self.kernel.load(self.memory, self._place(at))

    def __setitem__(self, at: Index, value: Operand) -> None:
        made = value if isinstance(value, Value) else constant(value, self.memory.dtype)
        self.kernel.store(self.memory, self._place(at), made)

    def _place(self, at: Index) -> Value:
        return index(at) if self.base is None else self.base + at


@dataclass(frozen=True)
class Matrix:
    """An array in two dimensions."""

    array: Array
    rows: int
    columns: int
    steps: tuple[int, int]
    """From one row, and from one column, to the next."""
    imaginary: int | None = None
    """From a real part to the imaginary one, if it is complex."""
    is_conjugate: bool = False

    def __getitem__(self, at: tuple[Index, Index]) -> Value:
        place = self._place(*at)
        real = self.array[place]
        if self.imaginary is None:
            return real
        number = pair(real, self.array[index(place) + self.imaginary])
        return number.conj() if self.is_conjugate else number

    def __setitem__(self, at: tuple[Index, Index], value: Operand) -> None:
        place = self._place(*at)
        if self.imaginary is None:
            self.array[place] = value
            return
        number = value.conj() if self.is_conjugate and isinstance(value, Value) else value
        self.array[place] = number.re if isinstance(number, Value) else number
        self.array[index(place) + self.imaginary] = number.im if isinstance(number, Pair) else 0

    @property
    def dtype(self) -> DType:
        return self.array.memory.dtype

    def transposed(self) -> "Matrix":
        return replace(self, rows=self.columns, columns=self.rows, steps=self.steps[::-1])

    def adjoint(self) -> "Matrix":
        return replace(self.transposed(), is_conjugate=not self.is_conjugate)

    def _place(self, i: Index, j: Index) -> Index:
        return i * self.steps[0] + j * self.steps[1]


@dataclass(frozen=True)
class Scalar:
    """A variable. Threads that share a matrix have one each."""

    real: Array
    imaginary: Array | None = None

    def get(self) -> Value:
        return self.real[0] if self.imaginary is None else pair(self.real[0], self.imaginary[0])

    def set(self, value: Operand) -> None:
        self.real[0] = value.re if isinstance(value, Value) else value
        if self.imaginary is not None:
            self.imaginary[0] = value.im if isinstance(value, Pair) else 0


@dataclass
class Kernel:
    """Emits the UOps of a kernel in order."""

    arguments: Sequence[tuple[DType, int]]
    """The type of each buffer, and its elements for each matrix."""
    batch: int
    style: Style
    scratch: int
    """Bytes for the arrays of one matrix."""
    is_complex: bool = False
    """Whether its matrices are: all real parts come first, then the imaginary ones."""
    uops: list[UOp] = field(default_factory=list)
    _emitted: list[set[UOp]] = field(default_factory=lambda: [set()])
    _ids: int = 0
    _sharing: bool = False
    """Whether a loop is open whose iterations the threads of a group share."""
    _used: int = 0

    # memory

    def argument(self, number: int) -> Array:
        """This matrix's part of an argument."""
        return Array(self, self._params[number], self.matrix * self.arguments[number][1])

    def array(self, dtype: DType, size: int) -> Array | None:
        """Fast memory; None if there is not enough of it."""
        bytes_ = max(size, 1) * dtype.itemsize
        if self._used + bytes_ > self.scratch:
            return None
        self._used += bytes_
        return Array(self, self._new_buffer(dtype, max(size, 1), AddrSpace.LOCAL))

    def small_array(self, dtype: DType, size: int) -> Array:
        """Fast memory for a few numbers for each row."""
        array = self.array(dtype, size)
        if array is None:
            raise NotImplementedError("a matrix of too many rows for fast memory")
        return array

    def scalar(self, start: Operand, dtype: DType) -> Scalar:
        parts = 2 if isinstance(start, Pair) else 1
        variable = Scalar(
            *(Array(self, self._new_buffer(dtype, 1, AddrSpace.REG)) for _ in range(parts))
        )
        variable.set(start)
        return variable

    def load(self, memory: UOp, at: Value) -> Value:
        # The tag keeps a load apart from an earlier one of the same place.
        place = UOp(Ops.INDEX, memory.dtype, (memory, at.uop))
        self._ids += 1
        load = UOp(Ops.LOAD, memory.dtype, (place,), None, (self._ids,))
        self._emit(load)
        return Value(load)

    def store(self, memory: UOp, at: Value, value: Value) -> None:
        place = UOp(Ops.INDEX, memory.dtype, (memory, at.uop))
        self._ids += 1
        self._emit(UOp(Ops.STORE, dtypes.void, (place, value.uop), None, (self._ids,)))

    def now(self, value: Value) -> Value:
        """Computed here, rather than in the loop that uses it first."""
        self._emit(value.uop)
        if isinstance(value, Pair):
            self._emit(value.im.uop)
        return value

    # loops

    def loop(self, start: Index, stop: Index) -> AbstractContextManager[Value]:
        """In order."""
        return self._loop(start, stop, IN_ORDER)

    @contextmanager
    def each(self, start: Index, stop: Index, per_lane: bool = False) -> Iterator[Value]:
        """Independent iterations. per_lane: with memory that other matrices use otherwise."""
        shared = self.style is Style.THREADS and not self._sharing
        kind = EACH if shared or self.style is Style.SERIAL else IN_ORDER
        if per_lane and self.style is Style.LANES:
            kind = PER_LANE
        self._sharing |= shared
        with self._loop(start, stop, kind) as i:
            yield i
        if shared:
            self._sharing = False
            self.barrier()

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Only if. Lanes do it together, if it is so for one of them.

        A condition on the data has to be the same for all threads that share a matrix.
        """
        self._emit(condition.uop)
        self.uops.append(UOp(Ops.IF, dtypes.void, (condition.uop,)))
        self._emitted.append(set())
        yield
        self._emitted.pop()
        self.uops.append(UOp(Ops.ENDIF, dtypes.void, ()))

    def barrier(self) -> None:
        """Threads that share a matrix wait for each other."""
        if self.style is Style.THREADS and not self._sharing:
            self.uops.append(UOp(Ops.BARRIER))

    def total(self, span: Span, term: Callable[[Value], Value], dtype: DType) -> Value:
        """The sum of independent real terms."""
        return self._reduced(span, dtype, 0, lambda a, i: a + term(i), "ADD")

    def product(self, span: Span, a: Callable[[Value], Value], b: Callable[[Value], Value],
                dtype: DType) -> Value:  # fmt: skip
        """The inner product of two vectors: the sum of conj(a) b."""

        def part(of: str) -> Value:
            return self.total(span, lambda i: getattr(a(i).conj() * b(i), of), dtype)

        return pair(part("re"), part("im")) if self.is_complex else part("re")

    def largest(
        self, span: Span, term: Callable[[Value], Value], dtype: DType, least: Operand
    ) -> Value:
        """The maximum of independent terms, which NaN is never."""
        return self._reduced(span, dtype, least, lambda a, i: a.max(term(i)), "MAX")

    def accumulate(
        self, target: Callable[[Value], tuple[Matrix, Index, Index]], rows: Span,
        terms: Span, term: Callable[[Value, Value], Value],
    ) -> None:  # fmt: skip
        """target(i) -= the sum of term(i, k) over k, for each of the rows i."""
        if self.style is Style.SERIAL:
            with self.loop(*terms) as k, self.each(*rows) as i:
                matrix, row, column = target(i)
                matrix[row, column] = matrix[row, column] - term(i, k)
            return
        with self.each(*rows) as i:
            matrix, row, column = target(i)
            rest = self.scalar(matrix[row, column], matrix.dtype)
            with self.loop(*terms) as k:
                rest.set(rest.get() - term(i, k))
            matrix[row, column] = rest.get()

    def rank_one(
        self, matrix: Matrix, rows: Span, columns: Span,
        left: Callable[[Value], Value], right: Callable[[Value], Value],
    ) -> None:  # fmt: skip
        """matrix[i, j] -= left(i) * right(j), for each of the rows and columns."""
        if self.style is Style.THREADS:
            with self.each(*rows) as i:
                a = left(i)
                with self.loop(*columns) as j:
                    matrix[i, j] = matrix[i, j] - a * right(j)
            return
        with self.loop(*columns) as j:
            b = right(j)
            with self.each(*rows) as i:
                matrix[i, j] = matrix[i, j] - left(i) * b

    @contextmanager
    def grid(self, rows: Span, columns: Span) -> Iterator[tuple[Value, Value]]:
        """Each (i, j), all independent; memory should run along the rows."""
        if self.style is Style.THREADS:
            with self.each(*rows) as i, self.loop(*columns) as j:
                yield i, j
        else:
            with self.loop(*columns) as j, self.each(*rows) as i:
                yield i, j

    def first_largest(
        self, span: Span, term: Callable[[Value], Value], dtype: DType
    ) -> tuple[Value, Value]:
        """Where the first of the largest terms is, and the term, which is never NaN.

        Terms are not negative; it is -1 where all are NaN.
        """
        start, stop = span[0], index(span[1])
        if self.style is Style.THREADS:
            best = self.largest(span, term, dtype, -1)

            def from_end(i: Value) -> Value:
                return term(i).differs(best).where(0, stop - i)

            place = self.largest(span, from_end, dtypes.int32, 0)
            return (place > 0).where(stop - place, start), best
        best_so_far = self.scalar(-1, dtype)
        where = self.scalar(start, dtypes.int32)
        with self.loop(start, stop) as i:
            value = term(i)
            better = value > best_so_far.get()
            where.set(better.where(i, where.get()))
            best_so_far.set(best_so_far.get().max(value))
        return where.get(), best_so_far.get()

    def matrix_in(self, argument: int, rows: int, columns: int, by_rows: bool) -> Matrix:
        """An argument as it lies in memory."""
        steps = (columns, 1) if by_rows else (1, rows)
        imaginary = rows * columns if self.is_complex else None
        return Matrix(self.argument(argument), rows, columns, steps, imaginary)

    def work_matrix(self, home: Matrix) -> Matrix:
        """Fast memory for a matrix whose place in the end is `home`; that, if there is too little.

        Columns begin an odd number of elements apart, so that rows too are spread over the banks.
        """
        stride = home.rows | 1
        count = stride * home.columns
        array = self.array(home.dtype, count * (2 if self.is_complex else 1))
        if array is None:
            return home
        imaginary = count if self.is_complex else None
        return Matrix(array, home.rows, home.columns, (1, stride), imaginary)

    def loaded(self, home: Matrix, source: Matrix | None = None) -> Matrix:
        """The same with the content of `source`, or of its home."""
        work = self.work_matrix(home)
        self.copy(work, source or home)
        return work

    def set_identity(self, matrix: Matrix) -> None:
        with self.grid((0, matrix.rows), (0, matrix.columns)) as (i, j):
            matrix[i, j] = unit(i, j, matrix.dtype)

    def copy(self, to: Matrix, source: Matrix) -> None:
        """Runs along the memory of the arguments."""
        if to is source:
            return
        outside = source if source.array.base is not None else to
        if outside.steps[1] != 1:
            to, source, outside = to.transposed(), source.transposed(), outside.transposed()
        if self.style is Style.THREADS:
            with self.each(0, to.rows * to.columns) as e:
                i, j = e // to.columns, e % to.columns
                to[i, j] = source[i, j]
            return
        with self.loop(0, to.rows) as i, self.each(0, to.columns, per_lane=True) as j:
            to[i, j] = source[i, j]

    # the kernel

    def begin(self) -> None:
        self._params = [
            UOp.param(slot, dtype, (self.batch * size,), "CPU")
            for slot, (dtype, size) in enumerate(self.arguments)
        ]
        for param in self._params:
            self._emit(param)
        self._open = self._loop(0, self.batch, MATRICES)
        self.matrix = self._open.__enter__()

    def end(self) -> list[UOp]:
        self._open.__exit__(None, None, None)
        return self.uops

    # --- how it is done ---

    def _reduced(
        self, span: Span, dtype: DType, first: Operand,
        step: Callable[[Value, Value], Value], name: str,
    ) -> Value:  # fmt: skip
        result = self.scalar(first, dtype)
        shared = self.style is Style.THREADS and not self._sharing
        self._sharing |= shared
        with self._loop(*span, EACH if shared else REDUCE) as i:
            result.set(step(result.get(), i))
        if not shared:
            return result.get()
        self._sharing = False
        together = combined(COMBINE + name, result.get().uop)
        self._emit(together)
        self.barrier()
        return Value(together)

    @contextmanager
    def _loop(self, start: Index, stop: Index, kind: AxisType) -> Iterator[Value]:
        end = index(stop - start)
        self._emit(end.uop)
        self._ids += 1
        loop = UOp(Ops.RANGE, dtypes.int32, (end.uop,), (self._ids, kind))
        self.uops.append(loop)
        self._emitted.append({loop})
        yield Value(loop) + start
        self._emitted.pop()
        self.uops.append(UOp(Ops.END, dtypes.void, (self.uops[-1], loop)))

    def _new_buffer(self, dtype: DType, size: int, space: AddrSpace) -> UOp:
        self._ids += 1
        buffer: UOp = UOp.placeholder((size,), dtype, self._ids, space)
        self._emit(buffer)
        return buffer

    def _emit(self, u: UOp) -> None:
        """Puts a node and what it needs, unless the open loops have it already."""
        new = u.toposort(
            gate=lambda node: (
                node.op not in (Ops.CONST, Ops.STACK)
                and not any(node in scope for scope in self._emitted)
            )
        )
        self.uops += new
        self._emitted[-1].update(new)
