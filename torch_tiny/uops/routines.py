"""Kernels that are not made of values, as nodes between buffers that the schedule leaves alone."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.dtype import DType
from tinygrad.uop.ops import KernelInfo, UOp

from torch_tiny.uops.expressions import DEVICE


@dataclass(frozen=True)
class Routine:
    """A kernel that torch_tiny.linalg knows how to write for a target.

    It works on `batch` matrices; sizes: type and elements of each argument, for one of them.
    """

    name: str
    numbers: tuple[int, ...]
    batch: int
    sizes: tuple[tuple[DType, int], ...]


def routine_results(routine: Routine, count: int, inputs: Sequence[UOp]) -> list[UOp]:
    """Its first `count` arguments are fresh buffers that it fills."""
    fresh = [
        UOp.new_buffer(DEVICE, routine.batch * size, dtype, next(_fresh))
        for dtype, size in routine.sizes[:count]
    ]
    kernel = UOp.sink(arg=_RoutineInfo(name=routine.name, routine=routine)).call(*fresh, *inputs)
    return [buffer.after(kernel) for buffer in fresh]


def routine_of(call: UOp) -> Routine | None:
    """What a kernel of the schedule is, if it is not made of loops around a store."""
    info = call.src[0].arg
    return info.routine if isinstance(info, _RoutineInfo) else None


_fresh = itertools.count(1 << 24)  # apart from the buffers that the schedule makes


@dataclass(frozen=True)
class _RoutineInfo(KernelInfo):
    routine: Routine | None = None
