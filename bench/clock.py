"""What runs inside a measuring process: the steps of the sides it was given, and the clock."""

import resource
import statistics
import time
from dataclasses import dataclass

import torch

from bench import inside
from bench.inside import Inside
from bench.sides import OURS, Side, Step
from bench.workloads import Wait, Workload

WARM_UP_STEPS = 5
WARM_UP_SECONDS = 0.2
SAMPLE = 4096

_steps: dict[Side, Step] = {}
_settled = True


@dataclass(frozen=True)
class FirstStep:
    """The first step that a process takes, and its memory by then, torch included."""

    seconds: float
    peak_bytes: int


def first_step(side: Side, workload: Workload, threads: int) -> FirstStep:
    """Take it in this process."""
    _make(workload, side, threads)
    seconds = seconds_per_step(side, Wait.EACH_STEP, steps=1)
    return FirstStep(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def prepare(side: Side, workload: Workload, threads: int) -> list[float]:
    """Make the step of a side and take it once; returns part of the result, to be compared."""
    _make(workload, side, threads)
    return sample(side)


def sample(side: Side) -> list[float]:
    """Take a step; part of its result."""
    part: list[float] = _steps[side]().flatten()[:SAMPLE].tolist()
    return part


def warm_up(side: Side, wait: Wait) -> float:
    """Run until times have settled; returns the seconds of a step."""
    global _settled
    if side == OURS:
        _settled = inside.settle(lambda: seconds_per_step(side, wait, steps=1))
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < WARM_UP_STEPS or time.perf_counter() - begin < WARM_UP_SECONDS:
        times.append(seconds_per_step(side, wait, steps=1))
    return statistics.median(times)


def look_inside(side: Side) -> Inside:
    """What a step of tiny is made of."""
    return inside.look(lambda: seconds_per_step(side, Wait.EACH_STEP, steps=1), settled=_settled)


def seconds_per_step(side: Side, wait: Wait, steps: int) -> float:
    """Take some steps. Each result is kept until it is there: nobody computes what is dropped."""
    step = _steps[side]
    clock = time.perf_counter
    if wait is Wait.NOT_COUNTED:
        total = 0.0
        for _ in range(steps):
            begin = clock()
            result = step()
            total += clock() - begin
            side.synchronize()
            del result
        return total / steps
    begin = clock()
    for _ in range(steps):
        result = step()
        if wait is Wait.EACH_STEP:
            side.synchronize()
            del result
    side.synchronize()
    return (clock() - begin) / steps


def _make(workload: Workload, side: Side, threads: int) -> None:
    torch.set_num_threads(threads)
    side.load()
    torch.manual_seed(0)
    _steps[side] = workload.make(side)
    side.synchronize()
