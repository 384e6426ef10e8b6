"""Gives each argument of the kernels its memory, in place where that is safe, and renders them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_tiny.engine import c_lanes, c_math, c_renderer
from torch_tiny.engine.codegen_routine import Written
from torch_tiny.linalg.kernel import MATRICES, Style
from torch_tiny.uops import AddrSpace, AxisType, Ops, UOp

_ENOUGH_TO_DIVIDE = 64


@dataclass(frozen=True)
class Kernel:
    """One C function: void name(void *const *buffers, int64_t begin, int64_t end)."""

    name: str
    source: str
    buffers: tuple[int, ...]  # >= 0: buffer of the region, < 0: temporary number -1-k
    parallel: int  # extent of the loop that begin and end cut; 1: call it once, with 0 and 1
    work: int  # rough count of bytes and operations, to decide on threads


@dataclass(frozen=True)
class Program:
    """Kernels in order; then each (temporary, buffer) of copies is copied home."""

    kernels: tuple[Kernel, ...]
    temporaries: tuple[int, ...]  # bytes of each
    copies: tuple[tuple[int, int], ...]
    source: str  # one C file


@dataclass(frozen=True)
class Body:
    """A kernel as linear UOps. PARAM k stands for slots[k]."""

    uops: tuple[UOp, ...]
    slots: tuple[int, ...]
    routine: Written | None = None

    def params(self) -> list[UOp]:
        return [u for u in self.uops if u.op is Ops.PARAM]


def place(count: int, bodies: Sequence[Body], numbers: Mapping[int, int | None]) -> Program:
    """numbers[slot]: what a slot is. Below `count` a buffer of the region, count+i the new content
    of buffer i, None a temporary."""
    temporaries: list[int] = []
    home: dict[int, int] = {}  # slot -> buffer or -1-temporary
    copies: list[tuple[int, int]] = []
    used = {body.slots[u.arg.slot]: u for body in bodies for u in body.params()}
    accesses = [_accesses(body) for body in bodies]
    for slot, param in used.items():
        number = numbers[slot]
        if number is not None and number < count:
            home[slot] = number
            continue
        if number is not None:
            old = {s for s, n in numbers.items() if n == number - count}
            if _may_overwrite(slot, old, accesses):
                home[slot] = number - count
                continue
            copies.append((len(temporaries), number - count))
        temporaries.append(param.max_numel() * param.dtype.itemsize)
        home[slot] = -len(temporaries)

    kernels: list[Kernel] = []
    prototypes: set[str] = set()
    made: dict[tuple[tuple[UOp, ...], tuple[int, ...]], Kernel] = {}
    for body in bodies:
        places = [home[body.slots[u.arg.slot]] for u in body.params()]
        order = tuple(dict.fromkeys(places))
        arguments = tuple(order.index(p) for p in places)
        if (body.uops, arguments) not in made:
            kernel, needed = _kernel(f"k{len(made)}", body, arguments)
            made[body.uops, arguments] = kernel
            prototypes |= needed
        kernels.append(replace(made[body.uops, arguments], buffers=order))
    source = "\n".join(
        (
            "#include <stdint.h>",
            *sorted(prototypes),
            c_math.HELPERS,
            *(k.source for k in made.values()),
        )
    )
    return Program(tuple(kernels), tuple(temporaries), tuple(copies), source)


def _kernel(name: str, body: Body, arguments: tuple[int, ...]) -> tuple[Kernel, set[str]]:
    """arguments: for each PARAM its place in the kernel's buffers."""
    pointers = dict(zip(body.params(), arguments, strict=True))
    written = {pointers[_buffer(u)] for u in body.uops if _is_global_store(u)}
    if body.routine is not None:
        return _routine(name, body.routine, pointers, written)
    divided = _divided_loop(body.uops)
    source, prototypes = c_renderer.render(name, body.uops, pointers, written, divided)
    parallel = 1 if divided is None else int(divided.vmax) + 1
    return Kernel(name, source, (), parallel, _work(body.uops)), prototypes


def _routine(
    name: str, routine: Written, pointers: Mapping[UOp, int], written: set[int]
) -> tuple[Kernel, set[str]]:
    uops, work = routine.uops, _work(routine.uops)
    if routine.style is Style.LANES:
        text = c_lanes.render(name, uops, pointers, written, routine.batch, routine.dtype)
        return Kernel(name, text, (), routine.parallel, work), set()
    matrices = next(u for u in uops if u.op is Ops.RANGE and u.arg[-1] is MATRICES)
    source, prototypes = c_renderer.render(name, uops, pointers, written, matrices)
    return Kernel(name, source, (), routine.parallel, work), prototypes


def _divided_loop(body: Sequence[UOp]) -> UOp | None:
    """The loop to cut: the first large one of the loops that wrap each other and all stores."""
    children: dict[UOp | None, list[UOp]] = {None: []}
    stores: set[UOp | None] = set()
    inside: list[UOp | None] = [None]
    for u in body:
        if u.op is Ops.RANGE:
            children[inside[-1]].append(u)
            children[u] = []
            inside.append(u)
        elif u.op is Ops.END:
            inside.pop()
        elif u.op is Ops.STORE:
            stores.add(inside[-1])
    chain: list[UOp] = []
    at: UOp | None = None
    while len(children[at]) == 1 and at not in stores:
        at = children[at][0]
        if at.arg[-1] is AxisType.REDUCE:
            break
        chain.append(at)
    large = (loop for loop in chain if int(loop.vmax) + 1 >= _ENOUGH_TO_DIVIDE)
    return next(large, max(chain, key=lambda loop: int(loop.vmax), default=None))


def _buffer(access: UOp) -> UOp:
    """The PARAM or BUFFER that a LOAD or STORE goes to."""
    u = access.src[0]
    while u.op not in (Ops.PARAM, Ops.BUFFER):
        u = u.src[0]
    return u


def _is_global_store(u: UOp) -> bool:
    return u.op is Ops.STORE and u.src[0].addrspace is AddrSpace.GLOBAL


# slot -> positions and indices of what is done with it, in one kernel
_Accesses = dict[tuple[Ops, int], list[tuple[int, UOp]]]


def _accesses(body: Body) -> _Accesses:
    found: _Accesses = {}
    for position, u in enumerate(body.uops):
        if u.op in (Ops.LOAD, Ops.STORE) and (buffer := _buffer(u)).op is Ops.PARAM:
            access = (position, u.src[0].src[1])
            found.setdefault((u.op, body.slots[buffer.arg.slot]), []).append(access)
    return found


def _may_overwrite(output: int, old: Iterable[int], accesses: Sequence[_Accesses]) -> bool:
    """Whether the output may take its buffer's memory while the old content is still being read.

    Readers must run before the writer, or read, in the writer, just what they are about to replace.
    """
    written = False
    for kernel in accesses:
        loads = [a for slot in old for a in kernel.get((Ops.LOAD, slot), ())]
        stores = kernel.get((Ops.STORE, output), [])
        if loads and written:
            return False
        written = written or bool(stores)
        if loads and stores:
            indices = {index for _, index in (*loads, *stores)}
            if len(indices) > 1 or max(p for p, _ in loads) > min(p for p, _ in stores):
                return False
    return True


def _most_trips(loop: UOp) -> int:
    length = loop.src[0]
    if length.op is Ops.WHERE:  # the last block of a sum is shorter: see uops/cascade.py
        return min(int(choice.vmax) for choice in length.src[1:])
    return int(loop.vmax) + 1


def _work(body: Sequence[UOp]) -> int:
    total, trips = 0, [1]
    for u in body:
        if u.op is Ops.RANGE:
            trips.append(trips[-1] * _most_trips(u))
        elif u.op is Ops.END:
            trips.pop()
        elif u.op in (Ops.LOAD, Ops.STORE) and u.src[0].addrspace is AddrSpace.GLOBAL:
            total += trips[-1] * int(u.src[0].dtype.itemsize)
        elif u.op is Ops.MULACC:
            total += trips[-1] * 4
    return total
