"""What runs in the process of a soak."""

from __future__ import annotations

import faulthandler
import itertools
import os
import sys
import warnings

from torch_tiny import _C
from torch_tiny.engine import service

from .crew import Crew
from .health import Held
from .settings import DEVICES, UNWEIGHED

WEIGHINGS = 6
# How much more resident memory there may be at the end: than after a third of the time, when most
# of what is made once has been made, and than after two thirds, since when nothing is new.
_GROWTH = {1: 0.10, 2: 0.03}
# In a run of minutes this many bytes, if that is more: on a busy machine plans and signatures are
# still on the way to their limits then.
_MADE_ONCE = 16 << 20
_SHORT = 30  # minutes
_KEPT = (128, 2048, 512)  # plans, signatures, codes: full after minutes
_MOST_OF_WORKER = 512 << 20  # bytes, with torch and the code of all regions that it remembers
_OF_ONE_COMPILE = 4  # its lock, the folder, a file there, and /proc, which is read to see it work


def main() -> int:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    minutes, seed = float(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        return play_alone(seed, *map(int, sys.argv[3].split(":")))
    _C.set_kept(*_KEPT)
    crew = Crew(seed)
    crew.work(minutes * 60, WEIGHINGS)
    room = _MADE_ONCE if minutes < _SHORT else 0
    grown = [] if os.environ.get(UNWEIGHED) else growth(crew.weights, room)
    faults = [*map(str, crew.differences), *failures(), *grown]
    print(summary())
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults in {minutes:g} minutes of seed {seed}")
    return 1 if faults else 0


def failures() -> list[str]:
    """What changes no result, but costs speed."""
    import torch_tiny

    return [
        f"{one.kind}, {one.count} times: {one.reason}  {one.where}"
        for one in torch_tiny.report().failures
    ]


def growth(weights: list[Held], room: int = 0) -> list[str]:
    """What is more at the end than it was. room: bytes of memory that may be more."""
    late, found = weights[-1], []
    for thirds, most in _GROWTH.items():
        before = weights[WEIGHINGS * thirds // 3 - 1].resident
        if late.resident > before + max(before * most, room):
            grew = f"from {before >> 20} to {late.resident >> 20} MiB"
            found.append(f"memory grew {grew} since {thirds}/3 of the time")
    early = weights[WEIGHINGS // 3 - 1]
    for what in ("device", "files", "threads"):
        before, after = getattr(early, what), getattr(late, what)
        if after > before:
            found.append(f"{what}: {after}, where there were {before}")
    if (most := max(held.worker for held in weights)) > _MOST_OF_WORKER:
        found.append(f"the worker has grown to {most >> 20} MiB")
    if late.compiling > _OF_ONE_COMPILE:
        found.append(f"{late.compiling} open files of compiles, of which one is under way")
    return found


def summary() -> str:
    import torch_tiny

    report = torch_tiny.report()
    regions = [(plan, region) for plan in report.plans for region in plan.regions]
    kept = {
        engine: sum(region.engine == engine for _, region in regions)
        for engine in ("uop", "aten", "")
    }
    return (
        f"{report.compiles} plans compiled, {report.plan_hits} of "
        f"{report.plan_hits + report.plan_misses} traces repeated; regions kept on kernels: "
        f"{kept['uop']}, on operators: {kept['aten']}, still timed: {kept['']}; runs of plans with "
        f"kernels: {sum(plan.runs for plan in report.plans)}"
    )


def play_alone(seed: int, thread: int, job: int) -> int:
    """Play one job until it has been compiled and its kernels were chosen or not."""
    from .job import Turn
    from .player import Player

    player = Player(seed, thread, f"tiny:{DEVICES - 1}")
    if (found := player.make(job)) is not None:
        print(found[1].text())
        assert service.engine is not None
        for inputs in itertools.count():
            player.play(*found, Turn(f"tiny:{thread}", inputs % 50))
            if inputs >= 200 and not service.engine.counts.waiting:
                break
    print(summary())
    return 1 if player.differences else 0


if __name__ == "__main__":
    sys.exit(main())
