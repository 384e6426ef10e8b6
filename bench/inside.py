"""What tiny tells about itself: whether it has settled, and what a step is made of."""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

QUIET_SECONDS = 0.5
MOST_SECONDS = 90.0
FEWEST_STEPS = 5
PAUSE = 0.005
"""Between steps, so that the compiling process gets a core."""
COUNTED_STEPS = 4


@dataclass(frozen=True)
class Inside:
    """A step of tiny as it is run after settling; all but the last three are per step."""

    calls: float
    """Recorded."""
    calls_left: float
    """Of these, run one by one by PyTorch's operators."""
    regions: float
    """That could be compiled."""
    regions_used: float
    """Of these, faster than PyTorch's operators and so run."""
    kernels: float
    settled: bool
    failures: int
    """Traces that could not be compiled."""
    last_failure: str


def settle(step: Callable[[], object]) -> bool:
    """Step until hot traces are compiled and the faster ways chosen; False if it took too long."""
    begin = changed = time.monotonic()
    steps, seen, runs = 0, None, _runs()
    while (now := time.monotonic()) - begin < MOST_SECONDS:
        step()
        time.sleep(PAUSE)
        steps += 1
        before, runs = runs, _runs()
        running = {plan for plan, count in runs.items() if count != before.get(plan)}
        if (state := _state()) != seen:
            changed, seen = now, state
        quiet = now - changed >= QUIET_SECONDS and steps >= FEWEST_STEPS
        if quiet and not _is_undecided(running):
            return True
    return False


def look(step: Callable[[], object], *, settled: bool) -> Inside:
    """Take some steps and count what they are made of."""
    metrics: Callable[[], Any] = _core().metrics
    calls, runs = metrics()["calls"], _runs()
    for _ in range(COUNTED_STEPS):
        step()
    recorded = (metrics()["calls"] - calls) / COUNTED_STEPS
    regions = [
        (region, (plan["runs"] - runs.get(plan["plan"], 0)) / COUNTED_STEPS)
        for plan in _plans()
        for region in plan["regions"]
    ]
    used = [(region, times) for region, times in regions if region["engine"] == "uop"]
    engine = _engine()
    return Inside(
        calls=recorded,
        calls_left=recorded - sum(region["calls"] * times for region, times in used),
        regions=sum(times for _, times in regions),
        regions_used=sum(times for _, times in used),
        kernels=sum(region["kernels"] * times for region, times in used),
        settled=settled,
        failures=0 if engine is None else engine.counts.failures,
        last_failure="" if engine is None else engine.counts.last_failure,
    )


def _state() -> object:
    """Differs after anything has happened. Which plans a step runs may alternate forever."""
    if (engine := _engine()) is None:
        return None
    counts = engine.counts
    compiled = counts.waiting, counts.compiles, counts.cache_hits, counts.failures
    return compiled, [_engines(plan) for plan in _plans()]


def _is_undecided(running: set[int]) -> bool:
    if (engine := _engine()) is None:
        return False
    plans = [plan for plan in _plans() if plan["plan"] in running]
    return engine.counts.waiting > 0 or any("" in _engines(plan) for plan in plans)


def _engines(plan: dict[str, Any]) -> list[str]:
    return [region["engine"] for region in plan["regions"]]


def _runs() -> dict[int, int]:
    return {plan["plan"]: plan["runs"] for plan in _plans()}


def _plans() -> list[dict[str, Any]]:
    plans: list[dict[str, Any]] = _core().plans(0)
    return plans


# Imported late: only the process that measures tiny may have it loaded.
def _core() -> Any:
    return importlib.import_module("torch_tiny._C")


def _engine() -> Any:
    return importlib.import_module("torch_tiny.engine.service").engine
