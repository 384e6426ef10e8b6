"""From the final values of a region's buffers to the loops that compute them, for any target."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch_tiny.engine import c_math
from torch_tiny.engine.codegen_fuse import without_copies
from torch_tiny.engine.codegen_nest import Nest
from torch_tiny.engine.codegen_routine import RoutineStep
from torch_tiny.uops import DType, Ops, UOp, buffer_param, called_name, routine_of, sink_of
from torch_tiny.uops.floats import seal_floats
from torch_tiny.uops.scheduling import flatten_kernel, schedule
from torch_tiny.uops.wrapping import seal_integers

Step = Nest | RoutineStep


def scheduled(
    buffers: Sequence[tuple[DType, int]],
    outputs: Mapping[int, UOp],
    store_costly: bool,
    most_buffers: int = 0,
) -> tuple[list[Step], "Arguments"]:
    """The loops to run, in order, and what their PARAMs are."""
    sealed = seal_floats(seal_integers(_stores(buffers, outputs)))
    calls = schedule(sealed, _is_costly if store_costly else lambda _: False, most_buffers)
    arguments = Arguments()
    steps = [step for call in calls if (step := _step(call, arguments)) is not None]
    return _without_copies(steps, arguments.kept()), arguments


def parts(
    steps: Sequence[Step], kept: set[int]
) -> Iterator[tuple[list[Nest] | RoutineStep, set[int]]]:
    """Routines, and what can be fused between them with the buffers that it has to leave behind."""
    runs: list[list[Nest] | RoutineStep] = []
    for step in steps:
        if isinstance(step, RoutineStep):
            runs.append(step)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(step)
        else:
            runs.append([step])
    used = [run.slots if isinstance(run, RoutineStep) else _slots(run) for run in runs]
    for number, run in enumerate(runs):
        elsewhere = (slot for k, slots in enumerate(used) if k != number for slot in slots)
        yield run, kept.union(elsewhere)


def renumbered(sink: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The kernel with its PARAMs and loops numbered from 0, and what PARAM k was."""
    uops = sink.toposort()
    params = [u for u in uops if u.op is Ops.PARAM]
    loops = sorted((u for u in uops if u.op is Ops.RANGE), key=lambda r: r.arg)
    renamed = {u: buffer_param(k, u.dtype, u.max_numel()) for k, u in enumerate(params)}
    renamed |= {u: u.replace(arg=(k, *u.arg[1:])) for k, u in enumerate(loops)}
    return sink.substitute(renamed), tuple(u.arg.slot for u in params)


@dataclass
class Arguments:
    """PARAMs for all buffers of a program, numbered together. Loops are numbered together too."""

    params: dict[UOp, UOp] = field(default_factory=dict)  # tinygrad's PARAM or BUFFER -> PARAM
    numbers: dict[int, int | None] = field(default_factory=dict)  # slot -> buffer, or a temporary
    loops: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1000))

    def param(self, argument: UOp) -> UOp:
        if argument not in self.params:
            number = argument.arg.slot if argument.op is Ops.PARAM else None
            self.params[argument] = self._new(argument.dtype, argument.max_numel(), number)
        return self.params[argument]

    def temporary(self, dtype: DType, size: int) -> UOp:
        return self._new(dtype, size, None)

    def kept(self) -> set[int]:
        return {slot for slot, number in self.numbers.items() if number is not None}

    def _new(self, dtype: DType, size: int, number: int | None) -> UOp:
        slot = 1000 + len(self.numbers)  # apart from the slots of any kernel
        self.numbers[slot] = number
        return buffer_param(slot, dtype, size)


# --- how it is done ---


def _stores(buffers: Sequence[tuple[DType, int]], outputs: Mapping[int, UOp]) -> UOp:
    # An output is a buffer of its own here, slot len(buffers)+i; `place` decides where it lives.
    stores = []
    for i, value in outputs.items():
        target = buffer_param(len(buffers) + i, *buffers[i])
        while value.op is Ops.RESHAPE:  # the loops of the kernel are the shape of what is stored
            value = value.src[0]
        stores.append(target.after(target.reshape(value.shape).store(value)))
    return sink_of(*stores)


def _is_costly(value: UOp) -> bool:
    """Function calls are dear, arithmetic is cheaper than memory."""
    here = value.toposort(gate=lambda u: u.op is not Ops.STAGE)
    return any(c_math.is_function(called_name(u)) for u in here)


def _step(call: UOp, arguments: Arguments) -> Step | None:
    routine = routine_of(call)
    if routine is None:
        return _nest(call, arguments)
    return RoutineStep(routine, tuple(arguments.param(u).arg.slot for u in call.src[1:]))


def _slots(nests: Sequence[Nest]) -> list[int]:
    return [u.arg.slot for n in nests for u in (n.target, *(load.src[0] for load in n.loads))]


def _without_copies(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    nests, homes = without_copies([s for s in steps if isinstance(s, Nest)], kept)
    slots = {source.arg.slot: target.arg.slot for source, target in homes.items()}
    return [
        step.renamed(slots) if isinstance(step, RoutineStep) else nests[step]
        for step in steps
        if isinstance(step, RoutineStep) or step in nests
    ]


def _nest(call: UOp, arguments: Arguments) -> Nest | None:
    """None if nobody reads what it would store."""
    uops = call.src[0].toposort()
    renamed = {u: arguments.param(call.src[1 + u.arg.slot]) for u in uops if u.op is Ops.PARAM}
    for loop in sorted((u for u in uops if u.op is Ops.RANGE), key=lambda r: r.arg):
        renamed[loop] = loop.replace(arg=(next(arguments.loops), *loop.arg[1:]))
    flat = flatten_kernel(call.src[0].substitute(renamed))
    end = flat.src[0] if flat.src else flat
    store, loops = (end.src[0], end.src[1:]) if end.op is Ops.END else (end, ())
    if store.op is not Ops.STORE:
        return None
    target, index = store.src[0].src
    return Nest(tuple(sorted(loops, key=lambda r: r.arg)), target, index, store.src[1])
