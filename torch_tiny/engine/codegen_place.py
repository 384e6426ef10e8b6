"""Gives each argument of the kernels its memory, in place where that is safe, and renders them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch_tiny.engine import c_lanes, c_math, c_renderer
from torch_tiny.engine.codegen_home import LARGE_NUMBER, Lines, Part, Program, accesses, homes, used
from torch_tiny.linalg.kernel import MATRICES, Style
from torch_tiny.uops import AddrSpace, AxisType, Ops, UOp
from torch_tiny.uops.cascade import extent

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
class Body(Lines):
    """How it is written if it is a routine."""

    style: Style | None = None


def place(count: int, bodies: Sequence[Body], numbers: Mapping[int, int | None]) -> Program[Kernel]:
    """numbers[slot]: what a slot is, see `homes`."""
    found = [accesses(body.uops, body.slots) for body in bodies]
    home = homes(used(bodies), numbers, count, found)
    kernels: list[Kernel] = []
    prototypes: set[str] = set()
    made: dict[tuple[tuple[UOp, ...], tuple[int, ...]], Kernel] = {}
    for body in bodies:
        places = body.places(home)
        order = tuple(dict.fromkeys(places))
        arguments = tuple(order.index(p) for p in places)
        if (body.uops, arguments) not in made:
            kernel, needed = _kernel(f"k{len(made)}", body, arguments)
            made[body.uops, arguments] = kernel
            prototypes |= needed
        kernels.append(replace(made[body.uops, arguments], buffers=order))
    texts = (kernel.source for kernel in made.values())
    source = "\n".join(("#include <stdint.h>", *sorted(prototypes), c_math.HELPERS, *texts))
    return Program(tuple(kernels), home.temporaries, home.copies, source)


def takes_any_size(kernel: Kernel, size: int) -> bool:
    """Whether it says nowhere but at the end of its loop that it is for `size` elements."""
    return kernel.parallel == size and not LARGE_NUMBER.search(kernel.source)


def joined(parts: Sequence[Part[Kernel]]) -> Program[Kernel]:
    """Each part is a call of the function of its kind, under another name."""
    names: dict[int, str] = {}
    kernels = []
    for part in parts:
        (kernel,) = part.program.kernels
        name = names.setdefault(id(part.program), f"k{len(names)}")
        text = re.sub(rf"\b{kernel.name}(?=(_body)?\()", name, kernel.source)
        places = tuple(part.places[buffer] for buffer in kernel.buffers)
        work = kernel.work * part.size // part.any_size
        kernels.append(Kernel(name, text, places, part.size, work))
    heads = (part.program.source.partition(c_math.HELPERS)[0] for part in parts)
    lines = sorted({line for head in {*heads} for line in head.splitlines()})
    texts = {kernel.name: kernel.source for kernel in kernels}
    return Program(tuple(kernels), (), (), "\n".join((*lines, c_math.HELPERS, *texts.values())))


def _kernel(name: str, body: Body, arguments: tuple[int, ...]) -> tuple[Kernel, set[str]]:
    """arguments: for each PARAM its place in the kernel's buffers."""
    pointers = dict(zip(body.params(), arguments, strict=True))
    stores = (u.src[0] for u in body.uops if u.op is Ops.STORE)
    written = {pointers[u.buf_uop] for u in stores if u.addrspace is AddrSpace.GLOBAL}
    work = _work(body.uops)
    matrices = (u for u in body.uops if u.op is Ops.RANGE and u.arg[-1] is MATRICES)
    if body.style is Style.LANES:
        batch, dtype = extent(next(matrices)), c_lanes.number_dtype(u.dtype for u in body.params())
        text = c_lanes.render(name, body.uops, pointers, written, batch, dtype)
        return Kernel(name, text, (), -(-batch // c_lanes.lanes_of(dtype)), work), set()
    divided = _divided_loop(body.uops) if body.style is None else next(matrices)
    source, prototypes = c_renderer.render(name, body.uops, pointers, written, divided)
    return Kernel(name, source, (), 1 if divided is None else extent(divided), work), prototypes


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
    large = (loop for loop in chain if extent(loop) >= _ENOUGH_TO_DIVIDE)
    return next(large, max(chain, key=extent, default=None))


def _most_trips(loop: UOp) -> int:
    length = loop.src[0]
    if length.op is Ops.WHERE:  # the last block of a sum is shorter: see uops/cascade.py
        return min(int(choice.vmax) for choice in length.src[1:])
    return extent(loop)


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
