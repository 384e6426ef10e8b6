"""One thread of a soak: makes jobs, plays them again and again, and replaces them one by one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import torch

from torch_tiny import _C

from .interrupt import interrupted
from .job import Job, Turn
from .operator import Operator
from .program import Program
from .training import Training

KINDS: tuple[Callable[[], Job], ...] = (Program, Operator, Training)
_POOL = 6
_LOOKS = 4  # at a job that differs
_RENEW = 1 / 150  # of turns: a job is played often enough to be compiled, timed and kept
_MIXTURE = 12  # jobs until there are other shares of the kinds


@dataclass(frozen=True)
class Difference:
    """What a report says of a job whose results are not the CPU's."""

    thread: int
    job: int
    turn: Turn
    reason: str
    text: str
    again: str
    """What came of playing it a few times more, and which compiled code took part."""

    def __str__(self) -> str:
        place = f"thread {self.thread}, job {self.job}, {self.turn}"
        return f"{place}: {self.reason}\n{self.again}\n{self.text}"


class Player:
    """Whatever is chosen depends on the seed alone, not on what other threads do meanwhile."""

    def __init__(self, seed: int, thread: int, shared_device: str) -> None:
        self.counts: Counter[str] = Counter()
        self.seen = time.monotonic()
        """When it last came to the end of something."""
        self.renews = True
        """Whether it makes new jobs."""
        self.differences: list[Difference] = []
        self._seed, self._thread = seed, thread
        self._own, self._shared = f"tiny:{thread}", shared_device
        self._choices = Random(f"{seed} {thread}")
        self._pool: list[tuple[int, Job]] = []
        self._made = 0
        self._was_interrupted = False

    def step(self) -> None:
        """Make a job, or play one of those there are."""
        choices = self._choices
        is_due = choices.random() < _RENEW
        if not self._pool or (is_due and self.renews):
            made = self.make(self._made)
            self._made += 1
            if made is not None:
                self._pool.append(made)
            del self._pool[:-_POOL]
        if not self._pool:
            return  # what was made differs already
        number, job = choices.choice(self._pool)
        alone, drops, fresh = choices.random() < 0.8, choices.random() < 0.1, choices.random() < 0.5
        inputs, after = choices.randrange(1, 50), choices.random() ** 3
        interrupts = choices.random() < 0.05
        shared = not alone and job.is_quiet
        turn = Turn(self._shared if shared else self._own, inputs * (fresh and not shared), drops)
        self.play(number, job, turn, after if interrupts else None)

    def make(self, number: int) -> tuple[int, Job] | None:
        """The job of this number, unless it differs already while it is made."""
        mixture = Random(f"{self._seed} mixture {number // _MIXTURE}")
        numbers = Random(f"{self._seed} {self._thread} {number}")
        job = numbers.choices(KINDS, [mixture.random() for _ in KINDS])[0]()
        turn = Turn(self._own)
        agrees = self._attempt(number, job, turn, lambda: job.make(numbers, turn))
        self.counts[f"{type(job).__name__.lower()}s made"] += 1
        return (number, job) if agrees else None

    def play(self, number: int, job: Job, turn: Turn, interrupt_after: float | None = None) -> None:
        def body() -> None:
            self._attempt(number, job, turn, lambda: job.play(turn))

        if interrupt_after is None:
            body()
        else:
            self._was_interrupted = interrupted(interrupt_after, body)
            self.counts["interrupted"] += self._was_interrupted
        self.counts[f"{type(job).__name__.lower()}s played"] += 1

    def _look_again(self, job: Job, turn: Turn) -> str:
        before = _compiled(turn.device)
        differed = 0
        for _ in range(_LOOKS):
            try:
                job.play(turn)
            except Exception:
                differed += 1
        ran = {
            name
            for key, (runs, names) in _compiled(turn.device).items()
            if runs > before.get(key, (0, []))[0]
            for name in names
        }
        compiled = f"with {', '.join(sorted(ran))} compiled" if ran else "with nothing compiled"
        return f"played again, it differs {differed} of {_LOOKS} times, {compiled}"

    def _attempt(self, number: int, job: Job, turn: Turn, do: Callable[[], None]) -> bool:
        torch.set_grad_enabled(True)  # an interrupt may have come between the two ends of a `with`
        if self._was_interrupted:
            self._was_interrupted = False
            with suppress(Exception):  # an error of what did not come to its end
                torch.tiny.synchronize(self._own)
        try:
            do()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            again = self._look_again(job, turn)
            found = Difference(self._thread, number, turn, reason, job.text(), again)
            print(found, flush=True)
            self.differences.append(found)
            self._pool = [one for one in self._pool if one[0] != number]
            return False
        finally:
            self.seen = time.monotonic()
        return True


def _compiled(device: str) -> dict[int, tuple[int, list[str]]]:
    """The compiled plans of a device: how often each has run, and its regions not given up."""
    return {
        plan["plan"]: (plan["runs"], [r["name"] for r in plan["regions"] if r["engine"] != "aten"])
        for plan in _C.plans(torch.device(device).index)
    }
