"""Where arguments of kernels live: in the region's buffers where that is safe, or temporaries."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch_tiny.uops import AddrSpace, Ops, UOp

Touched = tuple[Ops, int]
"""LOAD or STORE, and a slot."""
K = TypeVar("K")


@dataclass(frozen=True)
class Program(Generic[K]):
    """Kernels of a target in order; then each (temporary, buffer) of copies is copied home."""

    kernels: tuple[K, ...]
    temporaries: tuple[int, ...]  # bytes of each
    copies: tuple[tuple[int, int], ...]
    source: str  # of all kernels


@dataclass(frozen=True)
class Part(Generic[K]):
    """The one kernel of a program that was made for any number of elements, at work on `size`."""

    program: Program[K]
    any_size: int  # what it was made for
    places: Sequence[int]  # of its buffers
    size: int


LARGE_NUMBER = re.compile(r"(?<![\w.])\d{6,}(?![\w.])")
"""No code has such numbers but those that stand for any size."""


@dataclass(frozen=True)
class Lines:
    """A kernel as linear UOps. PARAM k stands for slots[k]."""

    uops: tuple[UOp, ...]
    slots: tuple[int, ...]

    def params(self) -> list[UOp]:
        return [u for u in self.uops if u.op is Ops.PARAM]

    def places(self, home: "Homes") -> tuple[int, ...]:
        """Where its PARAMs live, in their order."""
        return tuple(home.places[self.slots[u.arg.slot]] for u in self.params())


@dataclass(frozen=True)
class Accesses:
    """What a kernel does with each slot: the lines where it does so, and the places in memory."""

    lines: Mapping[Touched, Sequence[int]]
    places: Mapping[Touched, Set[UOp]]
    in_step: bool = True
    """Whether what stores an element is also what has loaded from its place before."""


def accesses(uops: Sequence[UOp], slots: Sequence[int]) -> Accesses:
    """Of a kernel as lines, in which PARAM k stands for slots[k]."""
    lines: dict[Touched, list[int]] = {}
    places: dict[Touched, set[UOp]] = {}
    for line, u in enumerate(uops):
        if u.op in (Ops.LOAD, Ops.STORE) and u.src[0].addrspace is AddrSpace.GLOBAL:
            touched = (u.op, slots[u.src[0].buf_uop.arg.slot])
            lines.setdefault(touched, []).append(line)
            places.setdefault(touched, set()).add(u.src[0].src[1])
    return Accesses(lines, places)


def nbytes(param: UOp) -> int:
    return int(param.max_numel() * param.dtype.itemsize)


def used(bodies: Iterable[Lines]) -> dict[int, int]:
    """The bytes of each slot."""
    return {body.slots[u.arg.slot]: nbytes(u) for body in bodies for u in body.params()}


@dataclass(frozen=True)
class Homes:
    """Slot -> buffer of the region, or -1-k for temporary k; bytes of temporaries.

    Each (temporary, buffer) of copies has to be copied home at the end.
    """

    places: Mapping[int, int]
    temporaries: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


def homes(
    sizes: Mapping[int, int],
    numbers: Mapping[int, int | None],
    count: int,
    kernels: Sequence[Accesses] = (),
) -> Homes:
    """sizes: the bytes of each slot. numbers[slot]: what a slot is. Below `count` a buffer of the
    region, count+i the new content of buffer i, None a temporary."""
    places: dict[int, int] = {}
    temporaries: list[int] = []
    copies: list[tuple[int, int]] = []
    for slot, nbytes in sizes.items():
        number = numbers[slot]
        if number is not None and number < count:
            places[slot] = number
            continue
        if number is not None:
            old = {s for s, n in numbers.items() if n == number - count}
            if _may_overwrite(slot, old, kernels):
                places[slot] = number - count
                continue
            copies.append((len(temporaries), number - count))
        temporaries.append(nbytes)
        places[slot] = -len(temporaries)
    return Homes(places, tuple(temporaries), tuple(copies))


def _may_overwrite(output: int, old: Set[int], kernels: Sequence[Accesses]) -> bool:
    """Whether the output may take its buffer's memory while the old content is still being read.

    Readers must run before the writer, or read, in the writer, just what they are about to replace.
    """
    written = False
    for kernel in kernels:
        loads = {place for slot in old for place in kernel.places.get((Ops.LOAD, slot), ())}
        stores = kernel.places.get((Ops.STORE, output), frozenset())
        if loads and written:
            return False
        written = written or bool(stores)
        if loads and stores:
            if not kernel.in_step or len(loads | stores) > 1:
                return False
            last = (line for slot in old for line in kernel.lines.get((Ops.LOAD, slot), ()))
            if max(last, default=-1) > min(kernel.lines[Ops.STORE, output]):
                return False
    return True
