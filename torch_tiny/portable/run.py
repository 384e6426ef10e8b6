"""Runs the compiled regions of a portable device."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torch_tiny import _C
from torch_tiny.engine.plan import Code, Kernel
from torch_tiny.linalg.sequence import unrolled
from torch_tiny.lower.shapes import DTYPES
from torch_tiny.portable.codegen import Places, built, number_dtype
from torch_tiny.portable.kind import Kind, Launch, Opened
from torch_tiny.portable.lifetimes import share
from torch_tiny.portable.memory import Memory


class Region:
    """A compiled region on its device."""

    def __init__(self, kind: Kind, opened: Opened, memory: Memory, code: Code) -> None:
        self._opened = opened
        self._memory = memory
        self._places = Places(len(code.buffers))
        count = len(code.kernels)
        together = [*code.kernels, *code.guard]
        steps, loops = self._steps(together), [kernel["loops"] for kernel in together]
        self._kernels = unrolled(steps[:count], loops[:count])
        self._guard = unrolled(steps[count:], loops[count:])
        self._temporaries = _share_temporaries(code.temporaries, self._guard + self._kernels)
        slots = {i: buffer for i, buffer in enumerate(code.buffers) if "slot" in buffer}
        self._slots = list(slots)
        self._sizes = {i: slot["nbytes"] for i, slot in slots.items() if slot["written"]}
        used = {b for step in self._kernels for b in step.buffers}
        self._old = used & set(range(len(code.buffers)))
        self._numbers: dict[torch.dtype, list[tuple[int, str]]] = {}
        given = (buffer for buffer in code.buffers if "slot" not in buffer)
        for position, buffer in enumerate(given):
            dtype = getattr(torch, buffer["dtype"])
            home = self._numbers.setdefault(number_dtype(kind, dtype), [])
            home.append((position, _FORMATS[dtype]))
        self._packed: dict[torch.dtype, tuple[bytes, int]] = {}

    def run(self, buffers: Sequence[int], numbers: Sequence[bytes]) -> list[int] | None:
        """The new content of what it writes; None if a call would raise.

        It is in new buffers, but for memory that is shared with tinygrad.
        """
        home = dict(zip(self._slots, buffers, strict=True))
        shared = {i: home[i] for i in self._sizes if home[i] and self._memory.is_shared(home[i])}
        for dtype, given in self._numbers.items():
            home[self._places.numbers(dtype)] = self._pack(dtype, given, numbers)
        made: list[int] = []
        new: dict[int, int] = {}
        try:
            for nbytes in self._temporaries:
                made.append(self._memory.allocate(nbytes))
                home[-len(made)] = made[-1]
            if self._guard and not self._holds(home):
                return None
            for i in self._sizes:
                if i not in shared or i in self._old:
                    new[i] = self._memory.allocate(self._sizes[i])
            home |= {self._places.new(i): (shared | new)[i] for i in self._sizes}
            self._launch(self._kernels, home)
        except BaseException:
            self._memory.free(new.values())
            raise
        finally:
            self._memory.free(made)
        for i in shared.keys() & new.keys():
            _C.note_traffic("copy on the device", self._memory.copy(shared[i], new[i]))
            self._memory.free([new[i]])
        return [(new | shared)[i] for i in self._sizes]

    def drop(self) -> None:
        self._memory.free(number for _, number in self._packed.values())

    def _holds(self, home: dict[int, int]) -> bool:
        answer = self._memory.allocate(4)
        try:
            self._launch(self._guard, home | {self._places.guard: answer})
            data = bytearray(1)
            self._memory.download(answer, memoryview(data))
            return bool(data[0])
        finally:
            self._memory.free([answer])

    def _launch(self, steps: Sequence[Launch], home: dict[int, int]) -> None:
        self._opened.run(
            [replace(s, buffers=[self._memory[home[b]] for b in s.buffers]) for s in steps]
        )

    def _steps(self, given: Sequence[Kernel]) -> list[Launch]:
        return [
            Launch(kernel, one["buffers"], one["groups"], one["threads"])
            for kernel, one in zip(built(self._opened, given), given, strict=True)
        ]

    def _pack(
        self, dtype: torch.dtype, given: list[tuple[int, str]], numbers: Sequence[bytes]
    ) -> int:
        """Numbers that are the same as last time are there already."""
        values = [struct.unpack(form, numbers[i])[0] for i, form in given]
        data = struct.pack(f"={len(values)}{_FORMATS[dtype][1]}", *_fitting(dtype, values))
        before, number = self._packed.get(dtype, (b"", 0))
        if data != before:
            number = self._memory.upload(number, memoryview(data))
            self._packed[dtype] = (data, number)
        return number


def _share_temporaries(sizes: Sequence[int], steps: Sequence[Launch]) -> list[int]:
    """Sizes of the buffers that are made for them, whose numbers the steps have then."""
    uses = [[-1 - b for b in step.buffers if b < 0] for step in steps]
    made, home = share(sizes, uses)
    for step in {id(step): step for step in steps}.values():
        step.buffers = [-1 - home[-1 - b] if b < 0 else b for b in step.buffers]
    return made


_FORMATS = {dtype: f"={DTYPES[dtype].fmt or 'H'}" for dtype in DTYPES}  # bfloat16 is its bits


def _fitting(dtype: torch.dtype, values: list[Any]) -> list[Any]:
    """float32 of a number that is too large for it is infinite, which struct does not know."""
    if dtype != torch.float32:
        return values
    return [float(torch.tensor(value, dtype=torch.float32)) for value in values]
