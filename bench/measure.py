"""Measuring: the sides take turns in one process; each round has a process of its own."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.process import in_process
from bench.sides import OURS, Side
from bench.workloads import Step, Wait, Workload

WARM_UP_STEPS = 5
WARM_UP_SECONDS = 0.2
BLOCK_SECONDS = 0.02
FEWEST_BLOCKS = 5


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
    """Times in seconds, ours and an opponent's, and their ratios, one of each round."""

    ours: Spread
    theirs: Spread
    ratio: Spread
    ratios: list[float]

    @staticmethod
    def of(ours: Sequence[float], theirs: Sequence[float]) -> "Comparison":
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        return Comparison(Spread.of(ours), Spread.of(theirs), Spread.of(ratios), ratios)


@dataclass(frozen=True)
class Result:
    """One workload against one opponent."""

    workload: Workload
    opponent: Side
    threads: int
    steady: Comparison
    first_step: Comparison

    @property
    def bar(self) -> float | None:
        return self.workload.bars.get(self.opponent)

    @property
    def passed(self) -> bool:
        return self.bar is None or self.steady.ratio.median <= self.bar


def compare(
    workload: Workload,
    opponents: list[Side],
    *,
    threads: int,
    rounds: int,
    seconds: float,
    apart: bool,
) -> list[Result]:
    """Measure a workload against each opponent, `seconds` for each side and round.

    In one process the sides meet the same disturbances, but also share the C library's heap; with
    `apart` each has a process to itself.
    """
    sides = [OURS, *opponents]
    steady: dict[Side, list[float]] = {side: [] for side in sides}
    first: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        order = sides[turn % len(sides) :] + sides[: turn % len(sides)]
        for side in order:
            first[side].append(in_process(_first_step, workload, side, threads))
        for together in [[side] for side in order] if apart else [order]:
            medians = in_process(_round, workload, together, threads, seconds)
            for side, median in zip(together, medians, strict=True):
                steady[side].append(median / workload.operators)
    return [
        Result(
            workload,
            opponent,
            threads,
            Comparison.of(steady[OURS], steady[opponent]),
            Comparison.of(first[OURS], first[opponent]),
        )
        for opponent in opponents
    ]


def _make(workload: Workload, side: Side) -> Step:
    torch.manual_seed(0)
    step = workload.make(side)
    side.synchronize()
    return step


def _first_step(workload: Workload, side: Side, threads: int) -> float:
    torch.set_num_threads(threads)
    return _time(_make(workload, side), side, Wait.EACH_STEP, steps=1)


def _round(workload: Workload, sides: list[Side], threads: int, seconds: float) -> list[float]:
    """The median over alternating blocks, seconds per step, of each side."""
    torch.set_num_threads(threads)
    steps = [_make(workload, side) for side in sides]
    _check_equal([step() for step in steps])
    speeds = [_warm_up(step, side, workload.wait) for step, side in zip(steps, sides, strict=True)]
    count = max(1, round(BLOCK_SECONDS / min(speeds)))
    blocks = max(FEWEST_BLOCKS, round(seconds / (count * max(speeds))))
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(blocks):
        for step, side, own in zip(steps, sides, times, strict=True):
            own.append(_time(step, side, workload.wait, count))
    return [statistics.median(own) for own in times]


def _check_equal(results: list[torch.Tensor]) -> None:
    """A side that computes something else cannot be compared."""
    for result in results[1:]:
        torch.testing.assert_close(result.cpu(), results[0].cpu(), rtol=1e-4, atol=1e-5)


def _warm_up(step: Step, side: Side, wait: Wait) -> float:
    """Run until times have settled; returns the seconds of a step."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < WARM_UP_STEPS or time.perf_counter() - begin < WARM_UP_SECONDS:
        times.append(_time(step, side, wait, steps=1))
    return statistics.median(times)


def _time(step: Step, side: Side, wait: Wait, steps: int) -> float:
    """Seconds per step."""
    clock = time.perf_counter
    if wait is Wait.NOT_COUNTED:
        total = 0.0
        for _ in range(steps):
            begin = clock()
            step()
            total += clock() - begin
            side.synchronize()
        return total / steps
    begin = clock()
    for _ in range(steps):
        step()
        if wait is Wait.EACH_STEP:
            side.synchronize()
    side.synchronize()
    return (clock() - begin) / steps
