"""From the final values of a region's buffers to CUDA kernels, and to machine code.

The schedule and the fusion over rows are those of the CPU; cuda_shape gives the loops to threads.
Pointers have to be multiples of 16 bytes, as those of whole storages are.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from torch_tiny.engine import cuda_renderer
from torch_tiny.engine.c_renderer import c_name
from torch_tiny.engine.codegen import parts, renumbered, scheduled
from torch_tiny.engine.codegen_cut import cut_reductions
from torch_tiny.engine.codegen_fuse import Limits, fuse
from torch_tiny.engine.codegen_nest import Nest, place_of
from torch_tiny.engine.codegen_routine import RoutineStep
from torch_tiny.engine.cuda_compile import compile, why_no_compiler  # noqa: A004
from torch_tiny.engine.cuda_shape import (
    MOST_THREADS,
    ROWS_PER_BLOCK,
    WARP,
    CannotShapeError,
    Launch,
    Shape,
)
from torch_tiny.linalg.kernel import Style
from torch_tiny.linalg.routine import emitted
from torch_tiny.uops import (
    AddrSpace,
    DType,
    Ops,
    Target,
    UOp,
    compiling,
    lower_kernel,
    native_half_casts,
    substituted,
)
from torch_tiny.uops.cascade import extent, is_rounded

__all__ = [
    "VARIANTS",
    "CudaKernel",
    "CudaProgram",
    "compile",
    "generate",
    "why_no_compiler",
    "without_repetition",
]

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


@dataclass(frozen=True)
class CudaProgram:
    """Kernels in order; then each (temporary, buffer) of copies is copied home."""

    kernels: tuple[CudaKernel, ...]
    temporaries: tuple[int, ...]  # bytes of each
    copies: tuple[tuple[int, int], ...]
    source: str  # one file with all kernels


def generate(
    buffers: Sequence[tuple[DType, int]],
    outputs: Mapping[int, UOp],
    scalars: Set[int] = frozenset(),
    variant: str = VARIANTS[0],
) -> CudaProgram:
    """CUDA for `buffers[i] = outputs[i]`, where values are flat UOps over buffer_param(i)s.

    scalars: the buffers that are numbers of the host. Kernels take them by value.
    """
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}, there are {VARIANTS}")
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
    home, temporaries, copies = _homes(len(buffers), bodies, arguments.numbers)
    kernels = _merged([_Use(body, body.places(home)) for body in bodies], scalars)
    unique = {k.name: k.source for k in kernels}
    source = "\n".join((cuda_renderer.HELPERS, *unique.values()))
    return CudaProgram(tuple(kernels), tuple(temporaries), tuple(copies), source)


# --- kernels as linear UOps ---


def _fused(nests: Sequence[Nest], kept: set[int]) -> "list[_Body] | None":
    """None where threads cannot share the fused loops."""
    with suppress(CannotShapeError):
        return _lower(fuse(nests, kept, LIMITS))
    return None


@dataclass(frozen=True)
class _Body:
    """PARAM k stands for slots[k]. loads and stores: PARAM -> indices, before loops were mapped."""

    uops: tuple[UOp, ...]
    launch: Launch
    slots: tuple[int, ...]
    loads: Mapping[int, frozenset[UOp]]
    stores: Mapping[int, frozenset[UOp]]

    def params(self) -> list[UOp]:
        return [u for u in self.uops if u.op is Ops.PARAM]

    def places(self, home: Mapping[int, int]) -> tuple[int, ...]:
        return tuple(home[self.slots[u.arg.slot]] for u in self.params())

    def indices(self, which: Mapping[int, frozenset[UOp]], slots: Set[int]) -> set[UOp]:
        return {i for k, found in which.items() if self.slots[k] in slots for i in found}

    def positions(self, op: Ops, slots: Set[int]) -> list[int]:
        return [
            position
            for position, u in enumerate(self.uops)
            if u.op is op
            and u.src[0].addrspace is AddrSpace.GLOBAL
            and self.slots[u.src[0].buf_uop.arg.slot] in slots
        ]


def _lower(sinks: Sequence[UOp]) -> list[_Body]:
    """Kernels that differ in their buffers only, as in an optimizer's step, are lowered once."""
    target = cuda_renderer.Target(Target("CPU"))
    lowered: dict[UOp, tuple[tuple[UOp, ...], Launch]] = {}
    bodies = []
    for sink in sinks:
        plain, slots = renumbered(sink)
        if plain not in lowered:
            shape = Shape()
            uops = tuple(lower_kernel(plain, target, shape, native_half_casts))
            lowered[plain] = (uops, shape.launch)
        bodies.append(_Body(*lowered[plain], slots, *_accesses(plain)))
    return bodies


def _routine(step: RoutineStep) -> _Body:
    """A warp for each small matrix, a block for each large one."""
    routine = step.routine
    side = math.isqrt(max(size for _, size in routine.sizes))
    many = routine.batch >= MANY_MATRICES and side <= 2 * WARP
    group = WARP if many or side <= WARP else min(MOST_THREADS, 1 << (side - 1).bit_length())
    uops = tuple(emitted(routine, Style.THREADS, SHARED_BYTES))
    shared = sum(u.max_numel() * u.dtype.itemsize + 64 for u in uops if _is_shared(u))
    together = max(1, min(ROWS_PER_BLOCK, SHARED_BYTES // max(shared, 1))) if group == WARP else 1
    launch = Launch("group", -(-routine.batch // together), (group, together), group)
    places = _places(uops)
    return _Body(uops, launch, step.slots, places[Ops.LOAD], places[Ops.STORE])


def _is_shared(u: UOp) -> bool:
    return u.op is Ops.BUFFER and u.addrspace is AddrSpace.LOCAL


def _places(uops: Sequence[UOp]) -> dict[Ops, dict[int, frozenset[UOp]]]:
    found: dict[Ops, dict[int, frozenset[UOp]]] = {Ops.LOAD: {}, Ops.STORE: {}}
    for u in uops:
        if u.op in found and (memory := u.src[0].src[0]).op is Ops.PARAM:
            slot = memory.arg.slot
            found[u.op][slot] = found[u.op].get(slot, frozenset()) | {u.src[0].src[1]}
    return found


def _accesses(sink: UOp) -> tuple[dict[int, frozenset[UOp]], dict[int, frozenset[UOp]]]:
    uops = sink.toposort()
    targets = {u.src[0] for u in uops if u.op is Ops.STORE}
    loads: dict[int, frozenset[UOp]] = {}
    stores: dict[int, frozenset[UOp]] = {}
    for u in uops:
        if u.op is Ops.INDEX and u.addrspace is AddrSpace.GLOBAL:
            found = stores if u in targets else loads
            slot = u.src[0].buf_uop.arg.slot
            found[slot] = found.get(slot, frozenset()) | {u.src[1]}
    return loads, stores


def without_repetition(nest: Nest, new_buffer: Callable[[DType, int], UOp]) -> Iterator[Nest]:
    """Reductions that do not depend on all loops get a kernel of their own.

    Loops have an outside where to compute them first, blocks have not.
    """
    value = nest.value
    for _ in nest.reduces:
        for reduce in (u for u in value.toposort() if u.op is Ops.REDUCE):
            loops = tuple(r for r in nest.loops if r in reduce.ranges)
            size = math.prod(extent(r) for r in loops)
            if len(loops) == len(reduce.ranges) and size < nest.size:
                break
        else:
            break
        index = place_of(loops)
        buffer = new_buffer(reduce.dtype, size)
        yield Nest(loops, buffer, index, reduce)
        value = substituted(value, {reduce: buffer.index(index)})
    yield Nest(nest.loops, nest.target, nest.index, value)


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


# --- memory ---


def _homes(
    count: int, bodies: Sequence[_Body], numbers: Mapping[int, int | None]
) -> tuple[dict[int, int], list[int], list[tuple[int, int]]]:
    """Where each slot lives: in its buffer, where that is safe, else in a temporary."""
    temporaries: list[int] = []
    home: dict[int, int] = {}
    copies: list[tuple[int, int]] = []
    for slot, param in {b.slots[u.arg.slot]: u for b in bodies for u in b.params()}.items():
        number = numbers[slot]
        if number is not None and number < count:
            home[slot] = number
            continue
        if number is not None:
            old = {s for s, n in numbers.items() if n == number - count}
            if _may_overwrite(slot, old, bodies):
                home[slot] = number - count
                continue
            copies.append((len(temporaries), number - count))
        temporaries.append(param.max_numel() * param.dtype.itemsize)
        home[slot] = -len(temporaries)
    return home, temporaries, copies


def _may_overwrite(output: int, old: Set[int], bodies: Sequence[_Body]) -> bool:
    """Whether the output may take its buffer's memory while the old content is still being read.

    In the kernel that writes it, each thread must read only what it is itself about to replace.
    """
    written = False
    for body in bodies:
        loads, stores = body.indices(body.loads, old), body.indices(body.stores, {output})
        if loads and written:
            return False
        written = written or bool(stores)
        if loads and stores:
            if body.launch.way != "flat" or len(loads | stores) > 1:
                return False
            last = max(body.positions(Ops.LOAD, old), default=-1)
            if last > min(body.positions(Ops.STORE, {output})):
                return False
    return True


# --- functions ---


@dataclass(frozen=True)
class _Use:
    """A body on its memory: PARAM k is at places[k]."""

    body: _Body
    places: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.places))

    @property
    def pattern(self) -> tuple[int, ...]:
        return tuple(self.order.index(p) for p in self.places)

    def written(self) -> set[int]:
        return {self.places[k] for k, u in enumerate(self.body.params()) if self._stores(u)}

    def _stores(self, param: UOp) -> bool:
        return param.arg.slot in self.body.stores


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

    def conflicts(self, use: _Use) -> bool:
        return bool(self.written & set(use.places) or self.touched & use.written())


def _merged(uses: Sequence[_Use], scalars: Set[int]) -> list[CudaKernel]:
    launches: list[_Launches] = []
    for use in uses:
        key = (use.body.uops, use.pattern, tuple(p in scalars for p in use.places))
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
        if one.conflicts(use):
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
        picked = ""
    else:
        place = {p: i for i, p in enumerate(order)}
        kinds = {place[p]: kind(k) for use in uses for k, p in enumerate(use.order)}
        parameters = [f"{kinds[i]}p{i}" for i in range(len(order))]
        picked = _picked([[place[p] for p in use.order] for use in uses], kind)
    threads = launch.block[0] * launch.block[1]
    head = f'extern "C" __global__ void __launch_bounds__({threads})'
    rest = f"({', '.join(parameters)}) {{\n{picked}{text}\n}}"
    name = names.setdefault(rest, f"k{len(names)}")
    return CudaKernel(
        name,
        f"{head} {name}{rest}",
        order,
        (launch.grid, len(uses), 1),
        (*launch.block, 1),
        0,
    )


def _picked(places: Sequence[Sequence[int]], kind: Callable[[int], str]) -> str:
    lines = [f"  {kind(k)}q{k};" for k in range(len(places[0]))]
    lines.append("  switch (blockIdx.y) {")
    for number, mine in enumerate(places):
        label = f"case {number}" if number + 1 < len(places) else "default"
        assigned = " ".join(f"q{k} = p{i};" for k, i in enumerate(mine))
        lines.append(f"    {label}: {assigned} break;")
    return "\n".join((*lines, "  }\n"))
