"""A kernel of the schedule: loops around one store, and how its loads move with the loops."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch_tiny.uops import AddrSpace, DType, Ops, UOp, simplified, sink_of, stride, substituted
from torch_tiny.uops.cascade import extent


@dataclass(frozen=True, eq=False)
class Nest:
    """for loops: target[index] = value. Buffers are PARAMs, loads are INDEX of a PARAM."""

    loops: tuple[UOp, ...]
    target: UOp
    index: UOp
    value: UOp

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple(extent(r) for r in self.loops)

    @cached_property
    def size(self) -> int:
        return math.prod(self.extents)

    @cached_property
    def loads(self) -> list[UOp]:
        return loads(self.value)

    @cached_property
    def reduces(self) -> list[UOp]:
        return [u for u in self.value.toposort() if u.op is Ops.REDUCE]

    @cached_property
    def sums_columns(self) -> bool:
        """Whether its reductions should run along the last loop: see codegen_loops."""
        return bool(self.loops) and is_contiguous_along(self.loops[-1], self.reduces)

    def sink(self) -> UOp:
        return sink_of(self.target.index(self.index).store(self.value).end(*self.loops))


def stored_first(
    nest: Nest, part: UOp, loops: tuple[UOp, ...], new_buffer: Callable[[DType, int], UOp]
) -> tuple[Nest, Nest]:
    """A part of its value as a nest over some of its loops, and the nest that loads that."""
    index = place_of(loops)
    buffer = new_buffer(part.dtype, math.prod(map(extent, loops)))
    value = substituted(nest.value, {part: buffer.index(index)})
    return Nest(loops, buffer, index, part), Nest(nest.loops, nest.target, nest.index, value)


MEMORY = (AddrSpace.GLOBAL, AddrSpace.LOCAL)


def place_of(loops: Iterable[UOp]) -> UOp:
    """Where the loops are, counted from 0 with the last loop fastest."""
    place = UOp.const(0)
    for loop in loops:
        place = place * extent(loop) + loop
    return simplified(place)


def digits_of(loops: Sequence[UOp], place: UOp) -> dict[UOp, UOp]:
    """The loops of a place: what `place_of` is made from."""
    digits: dict[UOp, UOp] = {}
    for loop in reversed(loops[1:]):
        digits[loop], place = place % extent(loop), place // extent(loop)
    return digits | dict.fromkeys(loops[:1], place)


def loads(u: UOp) -> list[UOp]:
    """Loads, and places stored to: INDEX of a buffer in memory."""
    return [x for x in u.toposort() if x.op is Ops.INDEX and x.addrspace in MEMORY]


def is_contiguous_along(loop: UOp, reduces: Iterable[UOp]) -> bool:
    """Whether the loads of the reductions run along this loop rather than along their own."""
    along = across = 0
    for reduce in reduces:
        for load in loads(reduce.src[0]):
            strides = [stride(load, r) for r in reduce.src[1:] if r in load.ranges]
            if strides and loop in load.ranges:
                across += 1 in strides
                along += 1 not in strides and stride(load, loop) == 1
    return along > across
