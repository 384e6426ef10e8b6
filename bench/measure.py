"""Measuring: the sides take turns, block by block; each round starts in fresh processes."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from bench import clock
from bench.process import Process, in_process
from bench.sides import OURS, Side
from bench.workloads import Workload

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


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    threads: int
    rounds: int
    seconds: float
    """For each side in each round."""
    apart: bool
    """In one process the sides also share the C library's heap, from which one may profit."""


def compare(workload: Workload, opponents: list[Side], settings: Settings) -> list[Result]:
    """Measure a workload against each opponent."""
    sides = [OURS, *opponents]
    steady: dict[Side, list[float]] = {side: [] for side in sides}
    first: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(settings.rounds):
        order = sides[turn % len(sides) :] + sides[: turn % len(sides)]
        for side in order:
            seconds = in_process(clock.first_step, workload, side, settings.threads)
            first[side].append(seconds)
        for side, seconds in _round(workload, order, settings).items():
            steady[side].append(seconds / workload.operators)
    return [
        Result(
            workload,
            opponent,
            settings.threads,
            Comparison.of(steady[OURS], steady[opponent]),
            Comparison.of(first[OURS], first[opponent]),
        )
        for opponent in opponents
    ]


def _round(workload: Workload, sides: list[Side], settings: Settings) -> dict[Side, float]:
    """The median over alternating blocks, seconds per step, of each side."""
    with ExitStack() as stack:
        shared = stack.enter_context(Process())
        process = {
            side: stack.enter_context(Process()) if side.alone or settings.apart else shared
            for side in sides
        }
        for side in sides:  # before any runs: autograd counts the devices at the first backward
            process[side].call(side.load)
        _check_equal(
            [process[side].call(clock.prepare, workload, side, settings.threads) for side in sides]
        )
        speeds = [process[side].call(clock.warm_up, side, workload.wait) for side in sides]
        steps = max(1, round(BLOCK_SECONDS / min(speeds)))
        blocks = max(FEWEST_BLOCKS, round(settings.seconds / (steps * max(speeds))))
        times: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(blocks):
            for side in sides:
                seconds = process[side].call(clock.seconds_per_step, side, workload.wait, steps)
                times[side].append(seconds)
    return {side: statistics.median(own) for side, own in times.items()}


def _check_equal(results: list[list[float]]) -> None:
    """A side that computes something else cannot be compared."""
    first, *others = map(torch.tensor, results)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)
