"""A random program as a job: in lock step with the CPU, with other inputs each time."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from programs import LockStep, NotAProgramError, as_test, write_program
from programs.lockstep import indices, seeded

from .job import Turn
from .shared import bin_of_tensors, host_numbers, seed_of

_SEEDS = 100  # a generated program has inputs of seeds below


class Program:
    def __init__(self) -> None:
        self.is_quiet = False
        self._lines: list[str] = []

    def make(self, numbers: Random, turn: Turn) -> None:
        step = _Step(turn)
        write_program(numbers, step, self._lines)
        self.is_quiet = step.is_quiet

    def play(self, turn: Turn) -> None:
        step = _Step(turn)
        try:
            for line in self._lines:
                step.do(line)
            step.finish()
        except NotAProgramError:
            pass  # with these inputs a statement fails that makes what others use
        finally:
            step.close()

    def text(self) -> str:
        return as_test("soak", self._lines, "a program of the soak")


class _Step(LockStep):
    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.device, lambda device: _variables(device, turn.inputs))
        self.is_quiet = True
        self._drops = turn.drops

    def do(self, line: str) -> None:
        if self._drops and line.startswith("del t"):
            bin_of_tensors.append(self.dev.get(line.removeprefix("del ")))
        super().do(line)

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


def _variables(device: str, inputs: int) -> dict[str, Any]:
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
