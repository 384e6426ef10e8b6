"""From the final values of a region's buffers to C kernels: schedule, fuse, lower, compile."""

import ctypes
import itertools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_tiny.engine import c_math, c_renderer
from torch_tiny.engine.codegen_cut import cut_reductions
from torch_tiny.engine.codegen_fuse import fuse, without_copies
from torch_tiny.engine.codegen_loops import shape_loops
from torch_tiny.engine.codegen_nest import Nest
from torch_tiny.engine.codegen_place import Body, Kernel, Program, place
from torch_tiny.engine.codegen_routine import RoutineStep, written
from torch_tiny.uops import (
    DType,
    Ops,
    Target,
    UOp,
    buffer_param,
    called_name,
    compiling,
    flatten_kernel,
    lower_kernel,
    routine_of,
    schedule,
    seal_floats,
    sink_of,
)
from torch_tiny.uops.wrapping import seal_integers

Step = Nest | RoutineStep

__all__ = ["VARIANTS", "Kernel", "Program", "compile_shared_object", "generate", "run"]

# fused: costly values used twice are stored, kernels are fused over rows.
# recomputed: the same, but such values are computed again. separate: kernels as scheduled.
VARIANTS = ("fused", "recomputed", "separate")

# Strict floats: reassociation is granted loop by loop, by the renderer's `omp simd reduction`.
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-w"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fopenmp-simd"),
)

GCC_SECONDS = 100.0


def generate(
    buffers: Sequence[tuple[DType, int]], outputs: Mapping[int, UOp], variant: str = VARIANTS[0]
) -> Program:
    """C for `buffers[i] = outputs[i]`, where values are flat UOps over buffer_param(i)s."""
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}, there are {VARIANTS}")
    with compiling():
        steps, arguments = scheduled(buffers, outputs, variant == "fused")
        bodies: list[Body] = []
        for part, kept in parts(steps, arguments.kept()):
            if isinstance(part, RoutineStep):
                routine = written(part.routine)
                bodies.append(Body(routine.uops, part.slots, routine))
                continue
            nests = [n for nest in part for n in cut_reductions(nest, arguments.temporary)]
            sinks = [n.sink() for n in nests] if variant == "separate" else fuse(nests, kept)
            bodies += _lower(sinks)
    return place(len(buffers), bodies, arguments.numbers)


def compile_shared_object(source: str, path: Path) -> None:
    """One gcc call; raises with gcc's words, or TimeoutError."""
    command = ["gcc", *FLAGS, "-x", "c", "-", "-o", str(path), "-lmvec", "-lm"]
    pipe = subprocess.PIPE
    gcc = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = gcc.communicate(source, GCC_SECONDS)
    except subprocess.TimeoutExpired:
        gcc.kill()  # and do not wait for what it has started
        raise TimeoutError(f"gcc did not end within {GCC_SECONDS:.0f} s") from None
    if gcc.returncode:
        raise RuntimeError(f"gcc failed with status {gcc.returncode}:\n{said[:2000]}")
    if path.read_bytes()[:4] != b"\x7fELF":
        raise RuntimeError("gcc wrote something that is no shared object")


def run(program: Program, shared_object: Path, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
    """Runs on one thread in place on `arrays`, for tests."""
    library = ctypes.CDLL(str(shared_object))
    scratch = [np.empty(max(size, 1), np.uint8) for size in program.temporaries]
    for kernel in program.kernels:
        pointers = [arrays[b] if b >= 0 else scratch[-1 - b] for b in kernel.buffers]
        table = (ctypes.c_void_p * len(pointers))(*(a.ctypes.data for a in pointers))
        begin, end = ctypes.c_int64(0), ctypes.c_int64(kernel.parallel)
        getattr(library, kernel.name)(table, begin, end)
    for temporary, buffer in program.copies:
        data = arrays[buffer]
        ctypes.memmove(data.ctypes.data, scratch[temporary].ctypes.data, data.nbytes)


# --- the schedule ---


def scheduled(
    buffers: Sequence[tuple[DType, int]],
    outputs: Mapping[int, UOp],
    store_costly: bool,
    most_buffers: int = 0,
) -> tuple[list[Step], "Arguments"]:
    """The loops to run, in order, and what their PARAMs are."""
    keep = _is_costly if store_costly else _never
    calls = schedule(_sealed(_stores(buffers, outputs)), keep, most_buffers)
    arguments = Arguments()
    return _without_copies([_step(c, arguments) for c in calls], arguments.kept()), arguments


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


def _stores(buffers: Sequence[tuple[DType, int]], outputs: Mapping[int, UOp]) -> UOp:
    # An output is a buffer of its own here, slot len(buffers)+i; `place` decides where it lives.
    stores = []
    for i, value in outputs.items():
        target = buffer_param(len(buffers) + i, *buffers[i])
        while value.op is Ops.RESHAPE:  # the loops of the kernel are the shape of what is stored
            value = value.src[0]
        stores.append(target.after(target.reshape(value.shape).store(value)))
    return sink_of(*stores)


def _sealed(sink: UOp) -> UOp:
    return seal_floats(seal_integers(sink))


def _never(value: UOp) -> bool:  # noqa: ARG001
    return False


def _is_costly(value: UOp) -> bool:
    """Function calls are dear, arithmetic is cheaper than memory."""
    here = value.toposort(gate=lambda u: u.op is not Ops.STAGE)
    return any(c_math.is_function(called_name(u) or "") for u in here)


def _lower(sinks: Sequence[UOp]) -> list[Body]:
    """Kernels that differ in their buffers only, as in an optimizer's step, are lowered once."""
    target = c_renderer.Target(Target("CPU"))
    lowered: dict[UOp, tuple[UOp, ...]] = {}
    bodies = []
    for sink in sinks:
        plain, slots = renumbered(sink)
        if plain not in lowered:
            lowered[plain] = tuple(lower_kernel(plain, target, shape_loops))
        bodies.append(Body(lowered[plain], slots))
    return bodies


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


def _step(call: UOp, arguments: Arguments) -> Step:
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


def _nest(call: UOp, arguments: Arguments) -> Nest:
    uops = call.src[0].toposort()
    renamed = {u: arguments.param(call.src[1 + u.arg.slot]) for u in uops if u.op is Ops.PARAM}
    for loop in sorted((u for u in uops if u.op is Ops.RANGE), key=lambda r: r.arg):
        renamed[loop] = loop.replace(arg=(next(arguments.loops), *loop.arg[1:]))
    (end,) = flatten_kernel(call.src[0].substitute(renamed)).src
    store, loops = (end.src[0], end.src[1:]) if end.op is Ops.END else (end, ())
    target, index = store.src[0].src
    return Nest(tuple(sorted(loops, key=lambda r: r.arg)), target, index, store.src[1])
