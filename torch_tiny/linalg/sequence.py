"""Routines of several steps: what one group of threads cannot do alone.

On portable devices a step is a kernel with a group for each of its parts; elsewhere the steps are
loops of one kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch_tiny.linalg.kernel import Kernel
from torch_tiny.linalg.value import Value


@dataclass(frozen=True)
class Step:
    """Independent parts of the work on one matrix. All are done before the next step begins."""

    write: Callable[[Kernel, Value], None]
    parts: int


@dataclass(frozen=True)
class Repeated:
    times: int
    steps: "Steps"


Steps = Sequence[Step | Repeated]
Loops = tuple[tuple[int, int], ...]
"""(count, times): once a kernel is done, it and those before it, count in all, run times times."""
_T = TypeVar("_T")


def in_loops(k: Kernel, steps: Steps) -> None:
    """All of it in one kernel."""
    for step in steps:
        if isinstance(step, Repeated):
            with k.loop(0, step.times):
                in_loops(k, step.steps)
        else:
            with k.loop(0, step.parts) as part:
                step.write(k, part)
                k.barrier()  # the next step reads what this one wrote


def in_kernels(steps: Steps) -> list[tuple[Step, Loops]]:
    """A kernel for each step, and what is repeated after it."""
    found: list[tuple[Step, Loops]] = []
    for step in steps:
        if isinstance(step, Step):
            found.append((step, ()))
            continue
        inside = in_kernels(step.steps)
        last, loops = inside[-1]
        found += [*inside[:-1], (last, (*loops, (len(inside), step.times)))]
    return found


def unrolled(steps: Sequence[_T], loops: Sequence[Loops]) -> list[_T]:
    """What is run, in order."""
    run: list[_T] = []
    begins: list[int] = []
    for step, after in zip(steps, loops, strict=True):
        begins.append(len(run))
        run.append(step)
        for count, times in after:
            run += run[begins[-count] :] * (times - 1)
    return run
