"""A recorded trace, read from the text the core describes it in (csrc/plan/describe.cpp)."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch_tiny import scalar_types as types
from torch_tiny.lower import written
from torch_tiny.schemas import schema_of
from torch_tiny.views import ViewSpec

# The types that are compiled, with c10's names and numbers; calls with others stay calls.
_TYPES = (
    ("Byte", 0, types.uint8),
    ("Char", 1, types.int8),
    ("Short", 2, types.int16),
    ("Int", 3, types.int32),
    ("Long", 4, types.int64),
    ("Half", 5, types.float16),
    ("Float", 6, types.float32),
    ("Double", 7, types.float64),
    ("ComplexHalf", 8, types.complex32),
    ("ComplexFloat", 9, types.complex64),
    ("ComplexDouble", 10, types.complex128),
    ("Bool", 11, types.bool_),
    ("BFloat16", 15, types.bfloat16),
)
DTYPES = {name: dtype for name, _, dtype in _TYPES}
# Operators take types as numbers.
_SCALAR_TYPES = {number: dtype for _, number, dtype in _TYPES}
SCALAR_TYPE_NUMBERS = {dtype: number for _, number, dtype in _TYPES}


@dataclass(frozen=True)
class Tensor:
    """A view of a slot's storage."""

    slot: int
    dtype: types.dtype
    spec: ViewSpec
    conj: bool = False
    """The elements are the conjugates of what is in memory."""
    neg: bool = False
    """They are its negatives."""


@dataclass(frozen=True)
class Value:
    """A number that came with a call: a float, or a CPU tensor that was captured."""

    index: int
    dtype: types.dtype
    is_number: bool
    """A Python number, which does not decide the type of a result."""
    known: float | None = None
    """The number itself where the plan is made for it alone."""
    item: int = -1
    """Which one of a list of numbers."""


@dataclass(frozen=True)
class Unknown:
    """An argument or a result that no lowering can take."""

    slot: int | None = None
    """Of a tensor: the call depends on others all the same."""


UNKNOWN = Unknown()
FROM_HOST = Unknown()
"""A CPU tensor that was captured, with more than one element."""


@dataclass(frozen=True)
class Slot:
    nbytes: int
    is_temporary: bool
    """Nothing refers to it once the trace has run."""


@dataclass
class Call:
    number: int
    op: str
    args: list[Any]
    """One per argument of the schema: Tensor, Value, lists of them, Unknown or a plain value."""
    results: list[Tensor | Unknown | None]
    """Fresh results, in slots of their own."""
    written: list[Tensor] = field(default_factory=list)
    """Tensors among the arguments that the call writes, in order."""
    written_unknown: set[int] = field(default_factory=set)
    """Slots of those that no lowering can take."""
    default: types.dtype = types.float32
    """PyTorch's default type when it was recorded."""
    is_ordered: bool = False
    """Whether it depends on others like it, by a generator or by what nobody sees."""

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tiny tensors among the arguments."""
        return tensors_in(self.args)

    @property
    def reads(self) -> set[int]:
        return _slots(self.args)

    @property
    def writes(self) -> set[int]:
        return _slots(self.results) | _slots(self.written) | self.written_unknown

    @property
    def is_transfer(self) -> bool:
        """Whether it only brings a CPU tensor to the device."""
        return self.op == "aten::copy_" and self.args[1] is FROM_HOST

    @property
    def is_plain(self) -> bool:
        """Whether every argument and result is of a kind that can be compiled."""
        return not any(isinstance(item, Unknown) for item in _items((*self.args, *self.results)))

    @property
    def length(self) -> int:
        """Of the lists among its arguments, if they are of one length and nothing else is long."""
        lengths = {len(arg) for arg in self.args if isinstance(arg, list) and arg}
        alone = (arg for arg in self.args if isinstance(arg, Tensor))
        if len(lengths) != 1 or any(math.prod(t.spec.shape) != 1 for t in alone):
            return 0
        return lengths.pop() if self.op.startswith(("aten::_foreach_", "aten::_fused_")) else 0

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """With others in place of its tensors."""

        def mapped(item: Any) -> Any:
            if isinstance(item, Tensor):
                return function(item)
            return [mapped(one) for one in item] if isinstance(item, list) else item

        parts = (mapped(part) for part in (self.args, self.results, self.written))
        return replace(self, **dict(zip(("args", "results", "written"), parts, strict=True)))

    def row(self, i: int) -> "Call":
        """The call on the i-th items of its lists."""
        args = [arg[i : i + 1] if isinstance(arg, list) else arg for arg in self.args]
        results, written = self.results[i :: self.length], self.written[i :: self.length]
        return replace(self, args=args, results=results, written=written)


@dataclass
class Trace:
    slots: list[Slot]
    calls: list[Call]


def read_trace(text: str) -> Trace:
    """Parse the core's description."""
    given = json.loads(text)
    slots = [Slot(nbytes, bool(temporary)) for nbytes, temporary in given["slots"]]
    return Trace(slots, [_call(i, call) for i, call in enumerate(given["calls"])])


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those of lists, too."""
    return (item for item in _items(values) if isinstance(item, Tensor))


def _slots(items: Iterable[Any]) -> set[int]:
    """The storages that these tensors, or lists of them, lie in."""
    tensors = (item for item in _items(items) if isinstance(item, Tensor | Unknown))
    return {tensor.slot for tensor in tensors if tensor.slot is not None}


def _items(values: Iterable[Any]) -> Iterator[Any]:
    """Those of lists one by one."""
    for value in values:
        if isinstance(value, list):
            yield from _items(value)
        else:
            yield value


def _call(number: int, given: dict[str, Any]) -> Call:
    schema = schema_of(given["op"])
    args = [_argument(arg) for arg in given["args"]]
    results = [_result(result, given["fresh"] + i) for i, result in enumerate(given["results"])]
    default, is_ordered = DTYPES[given.get("default", "Float")], given.get("ordered", False)
    call = Call(number, given["op"], args, results, default=default, is_ordered=is_ordered)
    if schema is None:
        call.args = [*args, UNKNOWN]
        call.written_unknown = _slots(args)
        return call
    names = written(given["op"], args)
    for i, argument in enumerate(schema.arguments):
        if argument.name in names:
            call.written += tensors_in([args[i]])
            call.written_unknown |= _slots(x for x in _items([args[i]]) if isinstance(x, Unknown))
        if isinstance(args[i], int) and "ScalarType" in argument.real_type:
            args[i] = _SCALAR_TYPES.get(args[i], UNKNOWN)
    return call


# By csrc/core/call_key.h's classes.
_KNOWN_FLOATS = {1: 0.0, 2: 1.0, 3: -1.0, 4: 2.0, 5: math.inf, 6: -math.inf}


def _argument(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    kind, rest = given[0], given[1:]
    reader = _READERS.get(kind)
    return UNKNOWN if reader is None else reader(rest)


def _tensor(given: list[Any]) -> Tensor | Unknown:
    slot, offset, dtype, sizes, strides, *bits = given
    if dtype not in DTYPES:
        return Unknown(slot)
    spec = ViewSpec(tuple(sizes), tuple(strides), offset)
    return Tensor(slot, DTYPES[dtype], spec, *(bool(bit) for bit in bits))


def _captured(given: list[Any]) -> Value | Unknown:
    index, dtype, sizes, wrapped = given
    if dtype not in DTYPES or sizes:
        return FROM_HOST
    return Value(index, DTYPES[dtype], bool(wrapped))


def _numbers(given: list[Any]) -> list[Value] | Unknown:
    index, dtypes = given
    if any(dtype not in DTYPES for dtype in dtypes):
        return UNKNOWN
    return [Value(index, DTYPES[dtype], True, None, i) for i, dtype in enumerate(dtypes)]


_READERS: dict[str, Callable[[list[Any]], Any]] = {
    "n": _numbers,
    "t": _tensor,
    "v": _captured,
    "d": lambda given: Value(given[0], types.float64, True, _KNOWN_FLOATS.get(given[1])),
    "z": lambda given: Value(given[0], types.complex128, True),
    "l": lambda given: [_argument(item) for item in given],
    **dict.fromkeys(("i", "b", "s"), lambda given: given[0]),
    "device": lambda _given: None,
}


def _result(given: Any, slot: int) -> Tensor | Unknown | None:
    if given is None:
        return None
    dtype, sizes, strides, offset, *bits = given
    return _tensor([slot, offset, dtype, sizes, strides, *bits])
