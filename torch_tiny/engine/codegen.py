"""From the final values of a region's buffers to C kernels: schedule, fuse, lower, compile."""

import resource
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from torch_tiny.engine import c_renderer
from torch_tiny.engine.codegen_cut import cut_reductions
from torch_tiny.engine.codegen_fuse import fuse
from torch_tiny.engine.codegen_gates import gates_of_data
from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.codegen_loops import shape_loops
from torch_tiny.engine.codegen_place import Body, Kernel, place
from torch_tiny.engine.codegen_routine import RoutineStep, written
from torch_tiny.engine.codegen_schedule import parts, renumbered, scheduled
from torch_tiny.uops import DType, Target, UOp, compiling
from torch_tiny.uops.passes import Hooks, Pass, lower_kernel
from torch_tiny.uops.rules import half_casts

# fused: costly values used twice are stored, kernels are fused over rows.
# recomputed: the same, but such values are computed again. separate: kernels as scheduled.
VARIANTS = ("fused", "recomputed", "separate")

# Strict floats: reassociation is granted loop by loop, by the renderer's `omp simd reduction`.
GCC = (
    *("gcc", "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-w"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fopenmp-simd"),
    # A library of its own for each region: a third of the bytes on disk, half of them in memory.
    *("-s", "-nostartfiles", "-Wl,-z,noseparate-code,-z,max-page-size=4096,--build-id=none"),
)

# Where loops stay scalar: else a choice becomes a branch that the processor cannot foresee.
WITHOUT_BRANCHES = ("-fno-thread-jumps", "-fno-tree-pre")

GCC_CPU_SECONDS = 10
"""For a region; most take a tenth of one."""
GCC_SECONDS = 100.0
"""Until it counts as hanging."""


def generate(
    buffers: Sequence[tuple[DType, int]], outputs: Mapping[int, UOp], variant: str = VARIANTS[0]
) -> Program[Kernel]:
    """C for `buffers[i] = outputs[i]`, where values are flat UOps over buffer_param(i)s."""
    with compiling():
        steps, arguments = scheduled(buffers, outputs, variant == "fused")
        bodies: list[Body] = []
        for part, kept in parts(steps, arguments.kept()):
            if isinstance(part, RoutineStep):
                uops, style = written(part.routine)
                bodies.append(Body(uops, part.slots, style))
                continue
            nests = [n for nest in part for n in cut_reductions(nest, arguments.temporary)]
            sinks = [n.sink() for n in nests] if variant == "separate" else fuse(nests, kept)
            bodies += _lower(sinks)
    return place(len(buffers), bodies, arguments.numbers)


class TooLongError(Exception):
    """A region that gcc finds no end of; it is given up."""


class GccError(RuntimeError):
    """gcc failed; what it was given may be right all the same."""


def shared_object(source: str) -> bytes:
    """One gcc call; raises with gcc's words, TooLongError, or TimeoutError where it hangs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        _call_gcc(source, path)
        library = path.read_bytes()
    if library[:4] != b"\x7fELF":
        raise GccError("gcc wrote something that is no shared object")
    return library


def _call_gcc(source: str, path: Path) -> None:
    more = WITHOUT_BRANCHES if c_renderer.SCALAR_MARK in source else ()
    gcc = (*GCC, *more, "-x", "c", "-", "-o", str(path), "-lmvec", "-lm")
    limited = f'ulimit -St {GCC_CPU_SECONDS}; ulimit -Ht {GCC_CPU_SECONDS + 1}; exec "$@"'
    command = ["/bin/sh", "-c", f"LC_ALL=C; export LC_ALL; {limited}", "sh", *gcc]
    pipe = subprocess.PIPE
    before = _cpu_seconds_of_children()
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = child.communicate(source, GCC_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()  # and do not wait for what it has started
        raise TimeoutError(f"gcc did not end within {GCC_SECONDS:.0f} s") from None
    if child.returncode:
        used = _cpu_seconds_of_children() - before
        is_over = child.returncode == -signal.SIGXCPU or "CPU time limit" in said
        if is_over or used > 0.9 * GCC_CPU_SECONDS:  # where that signal is ignored it is killed
            raise TooLongError(f"gcc did not end within {GCC_CPU_SECONDS} s of processor time")
        raise GccError(f"gcc failed with status {child.returncode}:\n{said[:2000]}")


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lower(sinks: Sequence[UOp]) -> list[Body]:
    """Kernels that differ in their buffers only, as in an optimizer's step, are lowered once."""
    gates = (Pass("gates of data", gates_of_data),)
    hooks = Hooks(c_renderer.Target(Target("CPU")), shape_loops, half_casts, text=gates)
    lowered = cache(lambda plain: tuple(lower_kernel(plain, hooks)))
    return [Body(lowered(plain), slots) for plain, slots in map(renumbered, sinks)]
