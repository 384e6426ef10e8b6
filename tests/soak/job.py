"""What a thread of a soak plays again and again, and how it is played this time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(frozen=True)
class Turn:
    """How a job is played this time."""

    device: str
    inputs: int = 0
    """Which inputs; those of 0 are the ones that it was made with."""
    drops: bool = False
    """Whether another thread drops its tensors."""


class Job(Protocol):
    """Something to compute on a device and on the CPU. Making it depends on the numbers alone."""

    is_quiet: bool
    """Whether nothing in it fails or draws numbers: it may share a device with other threads."""

    def make(self, numbers: Random, turn: Turn) -> None:
        """Decide what it does, perhaps by playing it for the first time."""

    def play(self, turn: Turn) -> None:
        """Raises AssertionError where the device differs from the CPU."""

    def text(self) -> str:
        """For a report: what it does, as a test where possible."""
