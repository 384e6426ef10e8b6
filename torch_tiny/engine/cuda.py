"""From the final values of a region's buffers to CUDA kernels, and to machine code.

The schedule and the fusion over rows are those of the CPU; cuda_shape gives the loops to threads.
Pointers have to be multiples of 16 bytes, as those of whole storages are.
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from torch_tiny.engine import cuda_renderer
from torch_tiny.engine.c_renderer import c_name
from torch_tiny.engine.codegen_cut import cut_reductions, without_repetition
from torch_tiny.engine.codegen_fuse import Limits, fuse
from torch_tiny.engine.codegen_home import (
    LARGE_NUMBER,
    Accesses,
    Lines,
    Part,
    Program,
    Touched,
    accesses,
    homes,
    used,
)
from torch_tiny.engine.codegen_nest import Nest
from torch_tiny.engine.codegen_routine import RoutineStep
from torch_tiny.engine.codegen_schedule import parts, renumbered, scheduled
from torch_tiny.engine.cuda_shape import (
    MOST_THREADS,
    ROWS_PER_BLOCK,
    WARP,
    CannotShapeError,
    Launch,
    Shape,
)
from torch_tiny.linalg.group import is_shared
from torch_tiny.linalg.kernel import Style
from torch_tiny.linalg.routine import emitted
from torch_tiny.uops import AddrSpace, DType, Ops, Target, UOp, compiling
from torch_tiny.uops.cascade import is_rounded
from torch_tiny.uops.passes import Hooks, lower_kernel
from torch_tiny.uops.rules import native_half_casts

# fused: kernels are fused over rows. separate: kernels as scheduled.
VARIANTS = ("fused", "separate")

FEW_BLOCKS, ENOUGH_BLOCKS = 64, 528  # a GPU has some 100 multiprocessors
# A kernel has 48 KB of shared memory unless it asks for more. A block per row, where there are a
# few long rows, leaves most of the GPU idle.
LIMITS = Limits(stack_bytes=40 << 10, few_rows=FEW_BLOCKS, short_row=1 << 13)
MOST_PIECES = 1024
MOST_ADDED = 128  # by one thread of a group that shares a sum
MANY_MATRICES = 1024  # keep the GPU busy with a warp for each
SHARED_BYTES = 46 << 10  # of a block, without asking for more
PARAMETER_BYTES = 4000  # of a kernel, 8 for each


@dataclass(frozen=True)
class CudaKernel:
    """One `extern "C" __global__` function. Its parameters are `buffers`, in this order."""

    name: str
    source: str
    buffers: tuple[int, ...]  # >= 0: buffer of the region, < 0: temporary number -1-k
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int  # dynamic, bytes
    use: "_Use"  # the first, of a launch that has several


def generate(
    buffers: Sequence[tuple[DType, int]],
    outputs: Mapping[int, UOp],
    scalars: Set[int] = frozenset(),
    variant: str = VARIANTS[0],
) -> Program[CudaKernel]:
    """CUDA for `buffers[i] = outputs[i]`, where values are flat UOps over buffer_param(i)s.

    scalars: the buffers that are numbers of the host. Kernels take them by value.
    """
    with compiling():
        steps, arguments = scheduled(buffers, outputs, store_costly=False)
        new = arguments.temporary
        bodies: list[_Body] = []
        for part, kept in parts(steps, arguments.kept()):
            if isinstance(part, RoutineStep):
                bodies.append(_routine(part))
                continue
            apart = [n for nest in part for n in without_repetition(nest, new)]
            cut = [n for nest in apart for n in cut_reductions(nest, new, _pieces)]
            fused = _fused(cut, kept) if variant == "fused" else None
            bodies += _lower([n.sink() for n in cut]) if fused is None else fused
    found = [body.accesses for body in bodies]
    home = homes(used(bodies), arguments.numbers, len(buffers), found)
    kernels = _merged([_Use(body, body.places(home)) for body in bodies], scalars)
    unique = {k.name: k.source for k in kernels}
    source = "\n".join((cuda_renderer.HELPERS, *unique.values()))
    return Program(tuple(kernels), home.temporaries, home.copies, source)


def takes_any_size(kernel: CudaKernel) -> bool:
    """Whether nothing but where its threads end says for how many elements it is."""
    count = kernel.use.body.launch.count
    return set(LARGE_NUMBER.findall(kernel.source)) == {str(count)}


def joined(parts: Sequence[Part[CudaKernel]], numbers: Set[int]) -> Program[CudaKernel]:
    """A launch for many parts of the same kind whose sizes are alike."""
    uses = []
    for part in parts:
        use = part.program.kernels[0].use
        places = tuple(part.places[b] for b in use.places)
        count = use.body.launch.count * part.size // part.any_size
        uses.append(_Use(use.body, places, count))
    kernels = tuple(_merged(uses, numbers))
    texts = {kernel.name: kernel.source for kernel in kernels}
    return Program(kernels, (), (), "\n".join((cuda_renderer.HELPERS, *texts.values())))


# --- kernels as linear UOps ---


def _fused(nests: Sequence[Nest], kept: set[int]) -> "list[_Body] | None":
    """None where threads cannot share the fused loops."""
    with suppress(CannotShapeError):
        return _lower(fuse(nests, kept, LIMITS))
    return None


@dataclass(frozen=True)
class _Body(Lines):
    launch: Launch
    accesses: Accesses


def _lower(sinks: Sequence[UOp]) -> list[_Body]:
    """Kernels that differ in their buffers only, as in an optimizer's step, are lowered once."""
    target = cuda_renderer.Target(Target("CPU"))

    @cache
    def lowered(plain: UOp) -> tuple[tuple[UOp, ...], Launch]:
        shape = Shape()
        return tuple(lower_kernel(plain, Hooks(target, shape, native_half_casts))), shape.launch

    bodies = []
    for sink in sinks:
        plain, slots = renumbered(sink)
        uops, launch = lowered(plain)
        # Places from before loops were mapped to threads, which look the same in all of them.
        found = replace(accesses(uops, slots), places=_places(sink), in_step=launch.way == "flat")
        bodies.append(_Body(uops, slots, launch, found))
    return bodies


def _routine(step: RoutineStep) -> _Body:
    """A warp for each small matrix, a block for each large one."""
    routine = step.routine
    side = math.isqrt(max(size for _, size in routine.sizes))
    many = routine.batch >= MANY_MATRICES and side <= 2 * WARP
    group = WARP if many or side <= WARP else min(MOST_THREADS, 1 << (side - 1).bit_length())
    uops = tuple(emitted(routine, Style.THREADS, SHARED_BYTES))
    shared = sum(u.max_numel() * u.dtype.itemsize + 64 for u in uops if is_shared(u))
    together = max(1, min(ROWS_PER_BLOCK, SHARED_BYTES // max(shared, 1))) if group == WARP else 1
    launch = Launch("group", -(-routine.batch // together), (group, together), group)
    return _Body(uops, step.slots, launch, replace(accesses(uops, step.slots), in_step=False))


def _places(sink: UOp) -> dict[Touched, frozenset[UOp]]:
    uops = sink.toposort()
    targets = {u.src[0] for u in uops if u.op is Ops.STORE}
    found: dict[Touched, frozenset[UOp]] = {}
    for u in uops:
        if u.op is Ops.INDEX and u.addrspace is AddrSpace.GLOBAL:
            touched = (Ops.STORE if u in targets else Ops.LOAD, u.src[0].buf_uop.arg.slot)
            found[touched] = found.get(touched, frozenset()) | {u.src[1]}
    return found


def _pieces(nest: Nest, length: int) -> int:
    """Into how many pieces to cut a reduction, for it to fill the GPU, and for no thread of a group
    to add up more than a short chain."""
    blocks, least, group = (
        (-(-nest.size // WARP), 128, WARP) if nest.sums_columns else (nest.size, 2048, MOST_THREADS)
    )
    exact = -(-length // (group * MOST_ADDED)) if any(map(is_rounded, nest.reduces)) else 1
    if blocks >= FEW_BLOCKS:
        return exact
    return max(exact, min(MOST_PIECES, ENOUGH_BLOCKS // blocks, length // least))


# --- functions ---


@dataclass(frozen=True)
class _Use:
    """A body on its memory: PARAM k is at places[k]."""

    body: _Body
    places: tuple[int, ...]
    count: int = 0
    """Of threads, where the body is for any number of them."""

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.places))

    @property
    def pattern(self) -> tuple[int, ...]:
        return tuple(self.order.index(p) for p in self.places)

    def written(self) -> set[int]:
        slots = (self.body.slots[u.arg.slot] for u in self.body.params())
        stored = self.body.accesses.places
        pairs = zip(self.places, slots, strict=True)
        return {place for place, slot in pairs if (Ops.STORE, slot) in stored}


@dataclass
class _Launches:
    """Uses of equal bodies that one launch makes: blockIdx.y tells them apart."""

    key: Hashable
    uses: list[_Use] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def add(self, use: _Use) -> None:
        self.uses.append(use)
        self.touched |= set(use.places)
        self.written |= use.written()


def _merged(uses: Sequence[_Use], scalars: Set[int]) -> list[CudaKernel]:
    launches: list[_Launches] = []
    for use in uses:
        given = tuple(p in scalars for p in use.places)
        alike = use.count.bit_length() // 2  # blocks without work are launched, too
        key = (use.body.uops, use.pattern, given, alike)
        one = _joinable(launches, key, use)
        if one is None:
            one = _Launches(key)
            launches.append(one)
        one.add(use)
    names: dict[str, str] = {}
    return [_kernel(one.uses, scalars, names) for one in launches]


def _joinable(launches: Sequence[_Launches], key: Hashable, use: _Use) -> _Launches | None:
    """The last launch of its kind, if nothing from there on touches what it touches."""
    for one in reversed(launches):
        if one.written & set(use.places) or one.touched & use.written():
            return None
        if one.key == key:
            fits = 8 * len(one.touched | set(use.places)) <= PARAMETER_BYTES
            return one if fits else None
    return None


def _kernel(uses: Sequence[_Use], scalars: Set[int], names: dict[str, str]) -> CudaKernel:
    body, launch = uses[0].body, uses[0].body.launch
    params, pattern = body.params(), uses[0].pattern
    pointers = {u: f"q{k}" for u, k in zip(params, pattern, strict=True)}
    given = frozenset(u for u, p in zip(params, uses[0].places, strict=True) if p in scalars)
    text = cuda_renderer.render(body.uops, launch, pointers, given)
    most = max(use.count for use in uses)
    if most:
        text = re.sub(rf"\b{launch.count}\b", "n", text)
    first = {k: u for u, k in reversed(list(zip(params, pattern, strict=True)))}
    writes = {k for k, p in enumerate(uses[0].order) if p in uses[0].written()}

    def kind(k: int) -> str:
        name = c_name(first[k].dtype)
        if uses[0].order[k] in scalars:
            return f"{name} "
        return f"{name} *" if k in writes else f"const {name} *__restrict__ "

    order = tuple(dict.fromkeys(p for use in uses for p in use.order))
    if len(uses) == 1:
        parameters = [f"{kind(k)}q{k}" for k in range(len(order))]
        picked = f"  const int n = {most};\n" if most else ""
    else:
        place = {p: i for i, p in enumerate(order)}
        kinds = {place[p]: kind(k) for use in uses for k, p in enumerate(use.order)}
        parameters = [f"{kinds[i]}p{i}" for i in range(len(order))]
        counts = [use.count for use in uses]
        picked = _picked([[place[p] for p in use.order] for use in uses], counts, kind)
    threads = launch.block[0] * launch.block[1]
    head = f'extern "C" __global__ void __launch_bounds__({threads})'
    rest = f"({', '.join(parameters)}) {{\n{picked}{text}\n}}"
    name = names.setdefault(rest, f"k{len(names)}")
    blocks = -(-most // threads) or launch.grid
    grid, block = (blocks, len(uses), 1), (*launch.block, 1)
    return CudaKernel(name, f"{head} {name}{rest}", order, grid, block, shared=0, use=uses[0])


def _picked(
    places: Sequence[Sequence[int]], counts: Sequence[int], kind: Callable[[int], str]
) -> str:
    lines = [f"  {kind(k)}q{k};" for k in range(len(places[0]))]
    lines.append("  int n;\n  switch (blockIdx.y) {")
    for number, (mine, count) in enumerate(zip(places, counts, strict=True)):
        label = f"case {number}" if number + 1 < len(places) else "default"
        assigned = " ".join(f"q{k} = p{i};" for k, i in enumerate(mine)) + f" n = {count};"
        lines.append(f"    {label}: {assigned} break;")
    return "\n".join((*lines, "  }\n"))
