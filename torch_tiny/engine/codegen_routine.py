"""Kernels that are not loops around a store: which style they are written in on a CPU."""

from dataclasses import dataclass, replace

from torch_tiny.engine import c_lanes
from torch_tiny.linalg.kernel import Style
from torch_tiny.linalg.routine import emitted
from torch_tiny.uops import Ops, Routine, UOp, dtypes

_LANES_BYTES = 1 << 19  # of work memory: it should stay in the second-level cache
_SERIAL_BYTES = 1 << 18


@dataclass(frozen=True)
class RoutineStep:
    """A routine among the kernels of a schedule: argument k is the buffer of slot slots[k]."""

    routine: Routine
    slots: tuple[int, ...]

    def renamed(self, slots: dict[int, int]) -> "RoutineStep":
        return replace(self, slots=tuple(slots.get(s, s) for s in self.slots))


def written(routine: Routine) -> tuple[tuple[UOp, ...], Style]:
    """A vector of matrices at a time, where there are enough and they are small."""
    lanes = c_lanes.lanes_of(c_lanes.number_dtype(dtype for dtype, _ in routine.sizes))
    if 2 * routine.batch >= lanes:
        uops = emitted(routine, Style.LANES, _LANES_BYTES // lanes)
        if not _works_on_arguments(uops):
            return tuple(uops), Style.LANES
    return tuple(emitted(routine, Style.SERIAL, _SERIAL_BYTES)), Style.SERIAL


def _works_on_arguments(uops: list[UOp]) -> bool:
    """Whether there was too little memory: arguments are both read and written."""
    accessed = {
        op: {u.src[0].src[0] for u in uops if u.op is op and u.src[0].src[0].op is Ops.PARAM}
        for op in (Ops.LOAD, Ops.STORE)
    }
    return any(u.dtype in dtypes.floats for u in accessed[Ops.LOAD] & accessed[Ops.STORE])
