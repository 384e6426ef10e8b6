"""The style in which threads of a group are spelled out, for languages of portable devices.

What CUDA's renderer knows by the kind of a loop is written as index arithmetic, conditions and
work memory here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch_tiny.linalg.kernel import EACH, IN_ORDER, MATRICES, Array, Kernel
from torch_tiny.linalg.value import Operand, Span, Value
from torch_tiny.uops import AddrSpace, AxisType, DType, Ops, UOp, dtypes

UNIFORM = "uniform_load"
"""A load whose value is told to be the same for all threads of a group."""


@dataclass
class GroupKernel(Kernel):
    """A group of `threads` has a matrix. Conditions around barriers go through work memory."""

    threads: int = 32
    parts: dict[DType, UOp] = field(default_factory=dict)
    """Where threads put what is to be reduced."""

    def part(self, count: int) -> Value:
        """Which of the groups of a matrix this is."""
        return self.now(Value(_special(count, "gidx1")))

    def end(self) -> list[UOp]:
        """Work memory comes first: some languages have it in the outermost scope only."""
        super().end()
        first = [u for u in self.uops if u.op is Ops.PARAM or is_shared(u)]
        return [*dict.fromkeys(first), *(u for u in self.uops if u not in first)]

    def store(self, memory: UOp, at: Value, value: Value) -> None:
        alone = not self._sharing and memory.addrspace is not AddrSpace.REG
        if not alone:
            super().store(memory, at, value)
            return
        self.now(at)
        self.now(value)
        with super().when(self._thread < 1):
            super().store(memory, at, value)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        if self._sharing or not condition.uop.op_in_backward_slice_with_self(Ops.LOAD):
            with super().when(condition):
                yield
            return
        flag = self._new_buffer(dtypes.int32, 1, AddrSpace.LOCAL)
        self.barrier()
        self.store(flag, Value(UOp.const(0, dtypes.int32)), condition.to(dtypes.int32))
        self.barrier()
        shared = UOp(Ops.CUSTOM, dtypes.int32, (flag,), UNIFORM)
        with super().when(Value(shared).differs(0)):
            yield

    # --- how it is done ---

    @contextmanager
    def _loop(self, start: "Value | int", stop: "Value | int", kind: AxisType) -> Iterator[Value]:
        if kind is MATRICES:
            self._emitted.append(set())
            self._thread = self.now(Value(_special(self.threads, "lidx0")))
            matrix = self.now(Value(_special(self.batch, "gidx0")))
            # Never negative. Loops whose length is not plain to see are not unrolled.
            self._nothing = self.now((matrix < 0).where(matrix, 0))
            yield matrix
            return
        if kind is not EACH:
            with super()._loop(start, self._nothing + stop, kind) as i:
                yield i
            return
        count = stop - start
        most = count if isinstance(count, int) else int(count.uop.vmax)
        self.now(self._thread)
        with self._loop(0, -(-most // self.threads), IN_ORDER) as trip:
            number = trip * self.threads + self._thread
            with super().when(number < count):
                yield number + start

    def _reduced(
        self, span: Span, dtype: DType, first: Operand,
        step: Callable[[Value, Value], Value], name: str,
    ) -> Value:  # fmt: skip
        if self._sharing:
            return super()._reduced(span, dtype, first, step, name)
        mine = self.scalar(first, dtype)
        self._sharing = True
        with self._loop(*span, EACH) as i:
            mine.set(step(mine.get(), i))
        if dtype not in self.parts:
            self.parts[dtype] = self._new_buffer(dtype, self.threads, AddrSpace.LOCAL)
        parts = Array(self, self.parts[dtype])
        parts[self._thread] = mine.get()
        self._sharing = False
        self.barrier()
        whole = self.scalar(first, dtype)
        with self._loop(0, self.threads, IN_ORDER) as thread:
            part = parts[thread]
            whole.set(whole.get() + part if name == "ADD" else whole.get().max(part))
        self.barrier()
        return whole.get()


def _special(count: int, name: str) -> UOp:
    return UOp(Ops.SPECIAL, dtypes.int32, (UOp.const(count, dtypes.int32),), name)


def is_shared(u: UOp) -> bool:
    return u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL
