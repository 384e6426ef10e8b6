"""The pure values that a region computes: its calls, run on UOps."""

from dataclasses import dataclass, field
from typing import Any

from torch_tiny import scalar_types as types
from torch_tiny.lower import Lifted, NoLowering, lower
from torch_tiny.lower.complex_value import PARTS, Complex, from_real, read_complex, write_complex
from torch_tiny.lower.conditions import all_hold
from torch_tiny.lower.shapes import DTYPES
from torch_tiny.trace import Call, Tensor, Trace, Value, tensors_in
from torch_tiny.uops import DType, Ops, UOp, buffer_param, compiling, folded
from torch_tiny.uops.wrapping import seal_integers
from torch_tiny.views import read, write


@dataclass(frozen=True)
class Buffer:
    """What a kernel is given: the storage of a slot, or a number that came with a call."""

    dtype: types.dtype
    size: int
    slot: int | None = None
    call: int = 0
    value: int = 0
    item: int = -1
    offset: int = 0
    """Bytes of the storage before it."""

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass
class Values:
    """A region as pure values: `outputs[i]` is the final content of buffer i."""

    buffers: list[Buffer]
    outputs: dict[int, UOp]
    made: list[int]
    """Slots that come to exist in the region and are needed after it."""
    guard: UOp | None = None
    """What must hold for no call to raise, as one bool; None if nothing has to."""
    guarded: list[Call] = field(default_factory=list)
    """The calls that it is about."""

    def typed(self) -> list[tuple[DType, int]]:
        return [(DTYPES[buffer.dtype], buffer.size) for buffer in self.buffers]


def values(trace: Trace, calls: list[Call], needed_after: set[int]) -> Values:
    """What a region computes. Raises NoLowering where a call cannot be lowered after all."""
    with compiling():
        return _Evaluation(trace, calls).run(needed_after)


class CallError(Exception):
    """Which call could not be lowered, after those before it."""

    def __init__(self, call: Call, error: Exception) -> None:
        super().__init__(str(error))
        self.call = call
        self.error = error


class _Evaluation:
    """Runs the calls of a region on UOps: each storage has a current value."""

    def __init__(self, trace: Trace, calls: list[Call]) -> None:
        self._trace = trace
        self._calls = calls
        self._buffers: list[Buffer] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._current: dict[int, UOp] = {}
        self._first: dict[int, UOp] = {}
        self._dtypes: dict[int, types.dtype] = {}
        self._made = {result.slot for call in calls for result in tensors_in(call.results)}

    def run(self, needed_after: set[int]) -> Values:
        conditions: list[UOp] = []
        guarded: list[Call] = []
        for call in self._calls:
            try:
                from_data = [one for one in self._apply(call) if not _is_true(one)]
            except (MemoryError, OSError):  # no fault of the call's
                raise
            except Exception as error:
                raise CallError(call, error) from error
            conditions += from_data
            guarded += [call] if from_data else []
        outputs: dict[int, UOp] = {}
        made: list[int] = []
        for slot, value in self._current.items():
            if slot in self._made:
                if slot not in needed_after:
                    continue
                made.append(slot)
            elif value is self._first[slot]:
                continue
            outputs[self._buffer_of(slot)] = value
        return Values(self._buffers, outputs, made, all_hold(conditions), guarded)

    def _apply(self, call: Call) -> list[UOp]:
        """The call's conditions. An item of a list that shares memory with others comes after."""
        is_shared = call.written and _share_memory(call)
        parts = [call.row(i) for i in range(call.length)] if is_shared else [call]
        return [condition for part in parts for condition in self._apply_whole(part)]

    def _apply_whole(self, call: Call) -> list[UOp]:
        first = call.args[0] if call.args else None
        layout = first.spec if isinstance(first, Tensor) else None
        args = [self._argument(call, arg) for arg in call.args]
        results, conditions = lower(call.op, args, {}, layout, DTYPES[call.default])
        targets = [*call.results, *call.written]
        if len(results) != len(targets):
            raise NoLowering(f"{len(results)} results for {len(targets)} tensors", call.op)
        for target, value in zip(targets, results, strict=True):
            if isinstance(target, Tensor) and value is not None:
                if target.spec.overlaps() and not _is_one_number(value):
                    raise NoLowering("a write to memory that elements share", call.op)
                self._write(target, value)
        return conditions

    def _argument(self, call: Call, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._argument(call, item) for item in arg]
        if isinstance(arg, Tensor):
            return self._read(arg)
        if isinstance(arg, Value):
            return self._number(call, arg)
        return arg

    def _number(self, call: Call, value: Value) -> Any:
        if value.known is not None:
            return value.known
        if value.dtype.is_complex:
            # The items of a complex number are its parts.
            re, im = (self._lifted(call, value, PARTS[value.dtype], item) for item in (0, 1))
            return Complex(re, im, value.is_number)
        uop = self._lifted(call, value, value.dtype, value.item)
        if not value.is_number:
            return uop
        return Lifted(uop, float if value.dtype.is_floating_point else int)

    def _lifted(self, call: Call, value: Value, dtype: types.dtype, item: int) -> UOp:
        key = ("value", call.number, value.index, item)
        if key not in self._numbers:
            self._numbers[key] = len(self._buffers)
            self._buffers.append(Buffer(dtype, 1, None, call.number, value.index, item))
        return buffer_param(self._numbers[key], DTYPES[dtype], 1).reshape(())

    def _read(self, tensor: Tensor) -> UOp | Complex:
        flat = self._value_of(tensor)
        if not tensor.dtype.is_complex:
            value = read(flat, tensor.spec)
            return -value if tensor.neg else value
        number = read_complex(flat, tensor.spec)
        number = number.conj() if tensor.conj else number
        return -number if tensor.neg else number

    def _value_of(self, tensor: Tensor) -> UOp:
        self._check_dtype(tensor)
        if tensor.slot not in self._current:
            number = self._buffer_of(tensor.slot)
            size = self._buffers[number].size
            value = buffer_param(number, DTYPES[_part(tensor.dtype)], size)
            self._current[tensor.slot] = self._first[tensor.slot] = value
        return self._current[tensor.slot]

    def _write(self, tensor: Tensor, value: UOp | Complex) -> None:
        if tensor.slot in self._made and tensor.slot not in self._current:
            self._check_dtype(tensor)
            part = _part(tensor.dtype)
            size = self._trace.slots[tensor.slot].nbytes // part.itemsize
            nothing = UOp.const(0, DTYPES[part]).reshape((1,)).expand((size,))
            self._current[tensor.slot] = nothing
        flat = self._value_of(tensor)
        value = -value if tensor.neg else value
        if tensor.dtype.is_complex:
            number = value if isinstance(value, Complex) else from_real(value)
            number = number.conj() if tensor.conj else number
            self._current[tensor.slot] = write_complex(flat, tensor.spec, number)
        elif isinstance(value, Complex):
            raise NoLowering("a complex value for a real tensor")
        else:
            self._current[tensor.slot] = write(flat, tensor.spec, value)

    def _check_dtype(self, tensor: Tensor) -> None:
        dtype = _part(tensor.dtype)
        if self._dtypes.setdefault(tensor.slot, dtype) != dtype:
            raise NoLowering("memory seen as two types")

    def _buffer_of(self, slot: int) -> int:
        key = ("slot", slot)
        if key not in self._numbers:
            dtype = self._dtypes[slot]
            size = self._trace.slots[slot].nbytes // dtype.itemsize
            self._numbers[key] = len(self._buffers)
            self._buffers.append(Buffer(dtype, size, slot))
        return self._numbers[key]


def _is_one_number(value: UOp | Complex) -> bool:
    """Whether it is the same for all elements, so that their order does not matter."""
    if isinstance(value, Complex):
        return _is_one_number(value.re) and _is_one_number(value.im)
    while value.op in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.CAST):
        value = value.src[0]
    return value.op is Ops.CONST


def _is_true(condition: UOp) -> bool:
    """Whether it holds whatever the data."""
    if condition.op_in_backward_slice_with_self(Ops.PARAM):
        return False
    value = folded(seal_integers(condition)).base
    return value.op is Ops.CONST and bool(value.arg)


def _share_memory(call: Call) -> bool:
    """Whether storages that a row of lists writes are also another row's, or all rows'."""
    if call.length < 2:
        return False
    alone = {arg.slot for arg in call.args if isinstance(arg, Tensor)}
    row_of: dict[int, int] = {}
    shared = set()
    for i in range(call.length):
        items = (item for arg in call.row(i).args if isinstance(arg, list) for item in arg)
        for slot in {item.slot for item in items if isinstance(item, Tensor)}:
            if row_of.setdefault(slot, i) != i:
                shared.add(slot)
    return any(t.slot in shared | alone for t in call.written)


def _part(dtype: types.dtype) -> types.dtype:
    """Complex memory is memory of its parts, and may be seen as that."""
    return PARTS.get(dtype, dtype)
