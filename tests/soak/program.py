"""A random program as a job: in lock step with the CPU, with other inputs each time."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import torch
from programs import DifferenceError, LockStep, NotAProgramError, as_test, write_program
from programs.lockstep import indices, seeded
from programs.rounding import hangs_on_rounding

from .job import Turn
from .shared import bin_of_tensors, host_numbers, roundings, seed_of

_TAKES_STORAGE = re.compile(r"\.set_\((t\d+)\.untyped_storage\(\), (\d+), \((\d+),\)")
_SEEDS = 100  # a generated program has inputs of seeds below


class Program:
    def __init__(self) -> None:
        self.is_quiet = False
        self._lines: list[str] = []
        self._was_rounding = False

    def make(self, numbers: Random, turn: Turn) -> None:
        while _keeps_tensors(numbers):  # which would look as if the device kept them
            pass
        step = _Step(turn)
        with self._but_for_roundings(turn):
            write_program(numbers, step, self._lines)
        self.is_quiet = step.is_quiet

    def play(self, turn: Turn) -> None:
        step = _Step(turn)
        try:
            with self._but_for_roundings(turn):
                for line in self._lines:
                    step.do(line)
                step.finish()
        except NotAProgramError:
            pass  # with these inputs a statement fails that makes what others use
        finally:
            step.close()

    def text(self) -> str:
        return as_test("soak", self._lines, "a program of the soak")

    @contextmanager
    def _but_for_roundings(self, turn: Turn) -> Iterator[None]:
        """A difference that the CPU shows to itself is none."""
        try:
            yield
        except DifferenceError as difference:
            with host_numbers(0):
                if not hangs_on_rounding(self._lines, difference, partial(_variables, turn.inputs)):
                    raise
            if not self._was_rounding:
                print(f"a rounding, as the CPU's own: {difference}\n{self.text()}", flush=True)
            self._was_rounding = True
            roundings.append(turn.inputs)


class _Step(LockStep):
    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.device, partial(_variables, turn.inputs))
        self.is_quiet = True
        self._drops = turn.drops
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    def do(self, line: str) -> None:
        if (taken := _TAKES_STORAGE.search(line)) and taken[1] in self.oracle:
            of = self.oracle[taken[1]]
            room = of.untyped_storage().nbytes() // of.element_size()
            if room < int(taken[2]) + int(taken[3]):  # it would grow, by what nobody has written
                raise NotAProgramError(line)
        if self._drops and line.startswith("del t"):
            bin_of_tensors.append(self.dev.get(line.removeprefix("del ")))
        super().do(line)
        tensors = (one for one in self.oracle.values() if isinstance(one, torch.Tensor))
        self._made |= {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def has_kept_tensors(self) -> bool:
        """Whether PyTorch holds tensors of the CPU though the program has ended."""
        self.oracle.clear()
        gc.collect()
        return any(tensor() is not None for tensor in self._made.values())

    def expect(self, line: str, code: Any) -> Exception | None:
        if "seed(" not in line:
            error = super().expect(line, code)
        else:
            self.is_quiet = False
            with host_numbers(0):
                error = super().expect(line, code)
        self.is_quiet &= error is None
        return error

    def close(self) -> None:
        if self._drops:
            bin_of_tensors.extend(self.dev.values())
        super().close()


def _keeps_tensors(numbers: Random) -> bool:
    """Whether the program that these write leaves tensors on the CPU; if not, they start again.

    One whose gradient was asked for twice, for example, may hold itself.
    """
    before = numbers.getstate()
    step = _Step(Turn("cpu"))
    with host_numbers(0):
        write_program(numbers, step, [])
    if step.has_kept_tensors():
        return True
    numbers.setstate(before)
    return False


def _variables(inputs: int, device: str) -> dict[str, Any]:
    def seed(number: int) -> None:
        if device == "cpu":
            torch.default_generator.manual_seed(number)
        else:
            seed_of(device, number)

    return {
        "seeded": lambda seed, *how: seeded(seed + _SEEDS * inputs, *how),
        "indices": lambda seed, *how: indices(seed + _SEEDS * inputs, *how),
        "seed": seed,
        "limit": lambda _: None,  # which is the whole process's
    }
