"""Operators on lists of tensors: one function for each kind of element, whatever its size.

Calls on lists, such as an optimizer's step, fall into rows that have nothing to do with each other:
the i-th tensors of all lists. Rows that differ only in where and how large their tensors are run
the same function, which is given the number of elements as the end of its loop.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_tiny.engine.codegen_home import Part, Program
from torch_tiny.engine.target import Target
from torch_tiny.scalar_types import dtype
from torch_tiny.trace import Call, Slot, Tensor, Trace, Value, tensors_in
from torch_tiny.uops import UOp
from torch_tiny.values import Buffer, Values, values
from torch_tiny.views import ViewSpec


def lists_of(call: Call) -> Hashable | None:
    """Equal for calls on lists that may share their loops; None for other calls."""
    if not call.length or not all(map(_is_simple, _tensors(call))):
        return None
    first = next(arg for arg in call.args if isinstance(arg, list) and arg)
    shapes = tuple(item.spec.shape for item in first if isinstance(item, Tensor))
    if len(shapes) != call.length:
        return None
    rows = (call.row(i) for i in range(call.length))
    return shapes if all(map(_is_elementwise, rows, shapes)) else None


def compiled(
    calls: Sequence[Call], needed_after: set[int], target: Target
) -> tuple[Values, Program[Any]] | None:
    """A region of calls with equal `lists_of`; None where rows are not independent after all."""
    numbers = [_numbers(call) for call in calls]
    rows = [
        _Row([call.row(i) for call in calls], numbers, needed_after) for i in range(calls[0].length)
    ]
    if not all(row.is_uniform and row.size <= _LARGEST for row in rows) or _overlap(rows):
        return None
    if all(row.size == 1 for row in rows):  # what is a number and what an element is not known
        return None
    kinds: dict[Hashable, _Kind | None] = {}
    joined = _Joined()
    for row in rows:
        step = target.step(row.size, [home.begin for home in row.homes])
        if (row.key, step) not in kinds:
            kinds[row.key, step] = _kind(row, step * _ANY_SIZE, target)
        kind = kinds[row.key, step]
        if kind is None:
            return None
        joined.add(row, kind)
    return joined.values(), target.joined(joined.parts, joined.numbers())


# --- rows ---


@dataclass(frozen=True)
class _Home:
    """Where a tensor has its elements, one after the other."""

    slot: int
    begin: int
    nbytes: int
    dtype: dtype


class _Row:
    """The calls on the i-th tensors, and a key that rows of the same kind share."""

    def __init__(
        self, calls: list[Call], numbers: Sequence[set[int]], needed_after: set[int]
    ) -> None:
        """numbers: which arguments of each call have one number for all of a tensor's elements."""
        self.calls = calls
        pairs = zip(calls, numbers, strict=True)
        alone = (call.args[i] for call, some in pairs for i in some)
        self._numbers = {_home(t) for t in tensors_in(alone) if math.prod(t.spec.shape) == 1}
        self.shape = next(_tensors(calls[0])).spec.shape
        self.size = math.prod(self.shape)
        self.homes: dict[_Home, int] = {}
        self.is_whole: list[bool] = []
        self.made: list[int] = []
        self.written: set[_Home] = set()
        self.items: dict[tuple[int, int], int] = {}
        self._dtypes: set[dtype] = set()  # of several, dimensions would say which one is promoted
        described = [self._describe(call) for call in calls]
        self.kept = {
            number
            for home, number in self.homes.items()
            if number in self.made and home.slot in needed_after
        }
        self.key = repr((described, self.kept))
        layouts = {_layout(t.spec) for call in calls for t in _tensors(call) if self.fills(t)}
        self.is_uniform = (
            len(layouts) == 1 and len(self._dtypes) == 1 and not self._numbers & self.written
        )

    def fills(self, tensor: Tensor) -> bool:
        """Whether it has an element for each of the row's, not one for all of them."""
        return _home(tensor) not in self._numbers

    def number(self, tensor: Tensor) -> int:
        home = _home(tensor)
        if home not in self.homes:
            self.homes[home] = len(self.homes)
            self.is_whole.append(self.fills(tensor))
            self._dtypes.add(tensor.dtype)
        return self.homes[home]

    def _describe(self, call: Call) -> tuple[Any, ...]:
        args = [self._described(call, arg) for arg in call.args]
        results = list(tensors_in(call.results))
        self.made += map(self.number, results)
        self.written.update(map(_home, (*results, *call.written)))
        return (call.op, *args, *map(self.number, results))

    def _described(self, call: Call, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._described(call, item) for item in arg]
        if isinstance(arg, Tensor):
            return (self.number(arg), str(arg.dtype), self.fills(arg))
        if isinstance(arg, Value) and not arg.is_number:
            self._dtypes.add(arg.dtype)
        if isinstance(arg, Value) and arg.item >= 0:
            self.items[call.number, arg.index] = arg.item
            return repr(replace(arg, item=0))
        return repr(arg)


def _numbers(call: Call) -> set[int]:
    shapes = [t.spec.shape for t in next(arg for arg in call.args if isinstance(arg, list) and arg)]
    return {
        i
        for i, arg in enumerate(call.args)
        if isinstance(arg, Tensor)
        or (isinstance(arg, list) and [t.spec.shape for t in tensors_in(arg)] not in ([], shapes))
    }


def _tensors(call: Call) -> Iterator[Tensor]:
    """With the results."""
    return tensors_in((*call.args, *call.results))


def _is_simple(tensor: Tensor) -> bool:
    """Whether its elements fill a piece of memory and are what is in it."""
    spec = tensor.spec
    steps = sorted((stride, n) for n, stride in zip(spec.shape, spec.strides, strict=True) if n > 1)
    dense = 1
    for stride, n in steps:
        if stride != dense:
            return False
        dense *= n
    return not (tensor.conj or tensor.neg or tensor.dtype.is_complex or 0 in spec.shape)


def _is_elementwise(row: Call, shape: tuple[int, ...]) -> bool:
    written = (*row.results, *row.written)
    return all(isinstance(t, Tensor) and t.spec.shape == shape for t in written) and all(
        t.spec.shape in ((), (1,), shape) for t in row.tensors
    )


def _layout(spec: ViewSpec) -> tuple[int, ...]:
    pairs = zip(spec.shape, spec.strides, strict=True)
    return tuple(stride for n, stride in pairs if n > 1)


def _home(tensor: Tensor) -> _Home:
    size = tensor.dtype.itemsize
    nbytes = math.prod(tensor.spec.shape) * size
    return _Home(tensor.slot, tensor.spec.offset * size, nbytes, tensor.dtype)


def _overlap(rows: Sequence[_Row]) -> bool:
    """Whether memory that a row writes is also touched by another one, or as another tensor."""
    spans: dict[int, list[tuple[int, int, bool]]] = {}
    for row in rows:
        for home in row.homes:
            span = (home.begin, home.begin + home.nbytes, home in row.written)
            spans.setdefault(home.slot, []).append(span)
    for found in spans.values():
        found.sort()
        end, end_of_written = 0, 0
        for begin, this_end, is_written in found:
            if begin < end_of_written or (is_written and begin < end):
                return True
            end = max(end, this_end)
            end_of_written = this_end if is_written else end_of_written
    return False


# --- functions ---

# A prime, so that no loop over it is cut; and larger than any number that code has otherwise.
_ANY_SIZE = 1_000_003
_LARGEST = (1 << 31) - 1
"""Positions have 32 bits on a GPU."""


@dataclass(frozen=True)
class _Kind:
    """The function of rows with the same key. Its buffers' slots are the numbers of homes."""

    values: Values
    program: Program[Any]
    size: int


def _kind(row: _Row, size: int, target: Target) -> _Kind | None:
    """None if it takes more than one loop over all elements."""
    slots = [
        Slot((size if whole else 1) * home.dtype.itemsize, number in row.made)
        for (home, number), whole in zip(row.homes.items(), row.is_whole, strict=True)
    ]
    calls = [_flat(row, call, size) for call in row.calls]
    own = values(Trace(slots, calls), calls, row.kept)
    if own.guard is not None:
        return None
    program = target.generate(own, own.outputs, target.ways(own.buffers)[0])
    if len(program.kernels) != 1 or program.temporaries or program.copies:
        return None
    return _Kind(own, program, size) if target.takes_any_size(program, size) else None


def _flat(row: _Row, call: Call, size: int) -> Call:
    def flat(tensor: Tensor) -> Tensor:
        spec = ViewSpec((size,), (1,), 0) if row.fills(tensor) else ViewSpec((), (), 0)
        return Tensor(row.number(tensor), tensor.dtype, spec)

    return call.mapped(flat)


class _Joined:
    """What all rows work on: few functions, each called for many of them."""

    def __init__(self) -> None:
        self.parts: list[Part[Any]] = []
        self._buffers: dict[Buffer, int] = {}
        self._outputs: dict[int, UOp] = {}
        self._made: list[int] = []

    def add(self, row: _Row, kind: _Kind) -> None:
        homes = list(row.homes)
        places = []
        for i, buffer in enumerate(kind.values.buffers):
            place = self._buffers.setdefault(_own(buffer, row, homes), len(self._buffers))
            places.append(place)
            if i in kind.values.outputs:
                self._outputs[place] = kind.values.outputs[i]
        self._made += [homes[number].slot for number in kind.values.made]
        self.parts.append(Part(kind.program, kind.size, places, row.size))

    def values(self) -> Values:
        return Values(list(self._buffers), self._outputs, self._made)

    def numbers(self) -> set[int]:
        return {place for buffer, place in self._buffers.items() if buffer.slot is None}


def _own(buffer: Buffer, row: _Row, homes: Sequence[_Home]) -> Buffer:
    """What a buffer of the kind is for this row."""
    if buffer.slot is None:
        item = row.items.get((buffer.call, buffer.value), buffer.item)
        return replace(buffer, item=item)
    home = homes[buffer.slot]
    size = home.nbytes // home.dtype.itemsize
    return replace(buffer, slot=home.slot, size=size, offset=home.begin)
