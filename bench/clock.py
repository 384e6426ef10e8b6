"""What runs inside a measuring process: the steps of the sides it was given, and the clock."""

import statistics
import time

import torch

from bench.sides import Side
from bench.workloads import Step, Wait, Workload

WARM_UP_STEPS = 5
WARM_UP_SECONDS = 0.2
SAMPLE = 4096

_steps: dict[Side, Step] = {}


def first_step(workload: Workload, side: Side, threads: int) -> float:
    """Seconds of the first step that this process takes."""
    _make(workload, side, threads)
    return seconds_per_step(side, Wait.EACH_STEP, steps=1)


def prepare(workload: Workload, side: Side, threads: int) -> list[float]:
    """Make the step of a side and take it once; returns part of the result, to be compared."""
    _make(workload, side, threads)
    part: list[float] = _steps[side]().flatten()[:SAMPLE].tolist()
    return part


def warm_up(side: Side, wait: Wait) -> float:
    """Run until times have settled; returns the seconds of a step."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < WARM_UP_STEPS or time.perf_counter() - begin < WARM_UP_SECONDS:
        times.append(seconds_per_step(side, wait, steps=1))
    return statistics.median(times)


def seconds_per_step(side: Side, wait: Wait, steps: int) -> float:
    """Take some steps."""
    step = _steps[side]
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


def _make(workload: Workload, side: Side, threads: int) -> None:
    torch.set_num_threads(threads)
    side.load()
    torch.manual_seed(0)
    _steps[side] = workload.make(side)
    side.synchronize()
