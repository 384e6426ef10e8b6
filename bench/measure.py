"""Measuring: the sides take turns, block by block; each round starts in fresh processes."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

import torch

from bench import clock
from bench.clock import FirstStep
from bench.inside import Inside
from bench.process import CallError, Process, in_process
from bench.sides import OURS, Side
from bench.workloads import Workload

BLOCK_SECONDS = 0.02
FEWEST_BLOCKS = 5

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high)


@dataclass(frozen=True)
class Comparison:
    """Ours and an opponent's times in seconds, or bytes, and their ratios, one of each round."""

    ours: Spread
    theirs: Spread
    ratio: Spread
    ratios: list[float]

    @staticmethod
    def of(ours: Sequence[float], theirs: Sequence[float]) -> "Comparison":
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        return Comparison(Spread.of(ours), Spread.of(theirs), Spread.of(ratios), ratios)


@dataclass(frozen=True)
class Numbers:
    """What was measured of one workload against one opponent."""

    steady: Comparison
    first_step: Comparison | None
    memory: Comparison | None


@dataclass(frozen=True)
class Result:
    """One workload against one opponent: numbers, or why there are none."""

    workload: Workload
    opponent: Side
    threads: int
    numbers: Numbers | None
    failure: CallError | None
    inside: Inside | None

    @property
    def bar(self) -> float | None:
        return self.workload.bars.get(self.opponent)

    @property
    def passed(self) -> bool:
        if self.bar is None:
            return True
        return self.numbers is not None and self.numbers.steady.ratio.median <= self.bar


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    threads: int
    rounds: int
    seconds: float
    """For each side in each round."""
    apart: bool
    """In one process the sides also share the C library's heap, from which one may profit."""
    first_steps: bool
    """Measured as well, each in a process of its own."""


def compare(workload: Workload, opponents: list[Side], settings: Settings) -> list[Result]:
    """Measure a workload against each opponent. A side that fails is not asked again."""
    sides = [OURS, *opponents]
    steady: dict[Side, list[float]] = {side: [] for side in sides}
    first: dict[Side, list[FirstStep]] = {side: [] for side in sides}
    failures: dict[Side, CallError] = {}
    inside: Inside | None = None
    for turn in range(settings.rounds):
        order = sides[turn % len(sides) :] + sides[: turn % len(sides)]
        for side in order if settings.first_steps else ():
            try:
                if side not in failures:
                    own = in_process(clock.first_step, side, workload, settings.threads)
                    first[side].append(own)
            except CallError as error:
                failures[side] = error
        taken = _round(workload, [side for side in order if side not in failures], settings)
        failures |= taken.failures
        inside = taken.inside or inside
        for side, seconds in taken.seconds.items():
            steady[side].append(seconds / workload.operators)
        if OURS in failures:
            break

    def numbers(opponent: Side) -> Numbers:
        ours, theirs = first[OURS], first[opponent]
        compared = Comparison.of(steady[OURS], steady[opponent])
        if not settings.first_steps:
            return Numbers(compared, None, None)
        return Numbers(
            compared,
            Comparison.of([one.seconds for one in ours], [one.seconds for one in theirs]),
            Comparison.of([one.peak_bytes for one in ours], [one.peak_bytes for one in theirs]),
        )

    results = []
    for opponent in opponents:
        failure = failures.get(OURS) or failures.get(opponent)
        measured = None if failure else numbers(opponent)
        results.append(Result(workload, opponent, settings.threads, measured, failure, inside))
    return results


@dataclass
class _Round:
    """Some sides, each in its process; what they have given and what went wrong."""

    processes: dict[Side, Process]
    seconds: dict[Side, float] = field(default_factory=dict)
    failures: dict[Side, CallError] = field(default_factory=dict)
    inside: Inside | None = None

    def each(
        self, function: Callable[Concatenate[Side, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> dict[Side, R]:
        """Call it for each side that has not failed."""
        results: dict[Side, R] = {}
        for side, process in self.processes.items():
            try:
                if side not in self.failures:
                    results[side] = process.call(function, side, *args, **kwargs)
            except CallError as failure:
                self.failures[side] = failure
        return results

    def check_equal(self, samples: dict[Side, list[float]]) -> None:
        """A side that computes something else cannot be compared."""
        ours = torch.tensor(samples.get(OURS, []))
        for side in samples.keys() - {OURS} if OURS in samples else set():
            try:
                theirs = torch.tensor(samples[side])
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            except AssertionError as error:
                self.failures[side] = CallError(f"tiny's result is another: {error}")


def _round(workload: Workload, sides: list[Side], settings: Settings) -> _Round:
    """The median over alternating blocks, seconds per step, of each side."""
    with ExitStack() as stack:
        shared = stack.enter_context(Process())
        taken = _Round(
            {
                side: stack.enter_context(Process()) if side.alone or settings.apart else shared
                for side in sides
            }
        )
        taken.each(Side.load)  # before any runs: autograd counts the devices at the first backward
        taken.check_equal(taken.each(clock.prepare, workload, settings.threads))
        speeds = taken.each(clock.warm_up, workload.wait).values()
        if OURS not in sides or OURS in taken.failures:
            return taken
        steps = max(1, round(BLOCK_SECONDS / min(speeds)))
        blocks = max(FEWEST_BLOCKS, round(settings.seconds / (steps * max(speeds))))
        times: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(blocks):
            for side, seconds in taken.each(clock.seconds_per_step, workload.wait, steps).items():
                times[side].append(seconds)
        if not workload.has_optimizer:  # what was compiled since is compared as well
            taken.check_equal(taken.each(clock.sample))
        if OURS not in taken.failures:
            taken.inside = taken.processes[OURS].call(clock.look_inside, OURS)
    taken.seconds = {side: statistics.median(own) for side, own in times.items() if own}
    return taken
