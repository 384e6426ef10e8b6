"""Kernels written in the language of kernel.py, as nodes of a graph of pure values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_tiny.linalg import blocks, exponential, jacobi, lu, qr, triangular
from torch_tiny.linalg.group import GroupKernel
from torch_tiny.linalg.kernel import Kernel, Style
from torch_tiny.linalg.sequence import Loops, Steps, in_kernels, in_loops
from torch_tiny.uops import DType, GroupOp, Ops, Routine, UOp, call, dtypes, routine_results

_ROUTINES: tuple[Callable[..., None], ...] = (
    *(triangular.cholesky, triangular.triangular_solve, triangular.cholesky_solve),
    *(lu.lu, lu.solve, lu.lu_solve, lu.permutation, qr.geqrf, qr.reflect, jacobi.eigh, jacobi.svd),
    exponential.exponential,
)
ROUTINES = {routine.__name__: routine for routine in _ROUTINES}
SEQUENCES: dict[str, Callable[..., Steps]] = {"block_jacobi": blocks.block_jacobi}
COMPLEX = "complex_"
"""Before the name of a routine: its matrices are complex."""


def run(
    name: str, numbers: Sequence[int], batch: int,
    results: Sequence[tuple[DType, int]], given: Sequence[UOp],
) -> list[UOp]:  # fmt: skip
    """The results of a routine on a batch, flat. results: types, and elements for each matrix."""
    inputs: list[UOp] = []
    for x in given:
        flat = _in_memory(x).reshape((-1,))
        while flat in inputs:  # WebGPU binds a buffer to one argument only
            flat = _hidden(flat)
        inputs.append(flat)
    sizes = [*results, *((x.dtype, int(x.shape[0]) // batch) for x in inputs)]
    return routine_results(Routine(name, tuple(numbers), batch, tuple(sizes)), len(results), inputs)


def emitted(routine: Routine, style: Style, scratch: int) -> list[UOp]:
    """The kernel in order. PARAM k is argument k. scratch: bytes of fast memory for a matrix."""
    is_complex = routine.name.startswith(COMPLEX)
    return _written(Kernel(routine.sizes, routine.batch, style, scratch, is_complex), routine)


@dataclass(frozen=True)
class GroupStep:
    """A kernel of a routine, and what is repeated after it."""

    uops: list[UOp]
    parts: int
    """Groups for each matrix."""
    loops: Loops = ()


def emitted_for_groups(routine: Routine, scratch: int, threads: int) -> list[GroupStep]:
    """The same, with groups of threads spelled out."""
    is_complex = routine.name.startswith(COMPLEX)
    how = (routine.sizes, routine.batch, Style.THREADS, scratch, is_complex)
    name = routine.name.removeprefix(COMPLEX)
    if name not in SEQUENCES:
        return [GroupStep(_written(GroupKernel(*how, threads=threads), routine), 1)]
    made = []
    for step, loops in in_kernels(SEQUENCES[name](*routine.numbers)):
        k = GroupKernel(*how, threads=threads)
        k.begin()
        step.write(k, k.part(step.parts))
        made.append(GroupStep(k.end(), step.parts, loops))
    return made


def _written(kernel: Kernel, routine: Routine) -> list[UOp]:
    name = routine.name.removeprefix(COMPLEX)
    kernel.begin()
    if name in SEQUENCES:
        in_loops(kernel, SEQUENCES[name](*routine.numbers))
    else:
        ROUTINES[name](kernel, *routine.numbers)
    return kernel.end()


def _in_memory(x: UOp) -> UOp:
    """A kernel is given whole buffers.

    A part of a buffer would be taken for the buffer, if it begins where that begins. What is
    computed may turn out to be constant (L of one row is 1), which a sealed addition hides.
    """
    base = x
    while base.op is Ops.RESHAPE:
        base = base.src[0]
    if base.op is Ops.SHRINK:
        return base.contiguous()
    while base.op in GroupOp.Movement:
        base = base.src[0]
    return x if base.op in (Ops.PARAM, Ops.BUFFER, Ops.AFTER) else _hidden(x)


def _hidden(x: UOp) -> UOp:
    if x.dtype not in dtypes.floats:  # pivots, which float32 counts exactly
        return _hidden(x.cast(dtypes.float32)).cast(x.dtype)
    return call("add", x, -0.0)
