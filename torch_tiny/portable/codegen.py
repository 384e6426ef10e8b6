"""From the final values of a region's buffers to kernels of a portable device, as text.

What a region writes goes to new buffers, which take the place of the old ones afterwards: no kernel
has to mind who still reads the old content, and a region that must not run leaves no trace.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_tiny.engine import plan
from torch_tiny.engine.codegen_cut import cut_reductions, without_repetition
from torch_tiny.engine.codegen_home import Program, homes, nbytes
from torch_tiny.engine.codegen_nest import Nest
from torch_tiny.engine.codegen_routine import RoutineStep
from torch_tiny.engine.codegen_schedule import renumbered, scheduled
from torch_tiny.linalg.routine import emitted_for_groups
from torch_tiny.linalg.sequence import Loops
from torch_tiny.lower.promote import NoLowering
from torch_tiny.lower.shapes import DTYPES
from torch_tiny.portable.kind import Kind, Opened
from torch_tiny.portable.split import with_few_buffers
from torch_tiny.uops import DType, Ops, UOp, buffer_param, compiling, dtypes, sink_of, substituted
from torch_tiny.uops.source import Source, narrowed, render, render_linear
from torch_tiny.values import Buffer

_MOST_PIECES = 256
_LEAST_LENGTH = 1024  # of a piece of a reduction
_MOST_GROUPS = 65535  # of threads, in one dimension of WebGPU
_FEW_THREADS, _MANY_THREADS = 32, 128  # share a matrix
_SMALL = 64 * 64  # elements


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str
    buffers: tuple[int, ...]
    """What its parameters are, see Places."""
    groups: tuple[int, ...]
    threads: tuple[int, ...]
    loops: Loops = ()


@dataclass(frozen=True)
class Places:
    """Numbers of buffers in kernels: of a region's buffer i, of its new content, of numbers.

    -1-k is temporary k. The buffer after the region's last is the guard's answer.
    """

    count: int

    @property
    def guard(self) -> int:
        return self.new(self.count)

    def new(self, i: int) -> int:
        return self.count + 1 + i

    def numbers(self, dtype: torch.dtype) -> int:
        return 2 * (self.count + 1) + _NUMBERS.index(dtype)


_NUMBERS = tuple(DTYPES)


def number_dtype(kind: Kind, dtype: torch.dtype) -> torch.dtype:
    """The type in which a number that came with a call reaches the kernels."""
    return torch.float32 if dtype in kind.lacks else dtype


def generate(
    kind: Kind, opened: Opened, buffers: Sequence[Buffer], outputs: Mapping[int, UOp]
) -> Program[Kernel]:
    """Kernels for `buffers[i] = outputs[i]`."""
    places = Places(len(buffers))
    values = _with_numbers(kind, buffers, outputs, places)
    typed = [(DTYPES[number_dtype(kind, b.dtype)], b.size) for b in buffers]
    typed.append((dtypes.bool, 1))
    with compiling():
        steps, arguments = scheduled(typed, values, False, opened.most_buffers)
        pieces = [p for step in steps for p in _lowered(kind, opened, step, arguments.temporary)]
    used = dict(parameter for piece in pieces for parameter in piece.parameters)
    home = homes(used, arguments.numbers, count=sys.maxsize)  # no buffer is written in place
    kernels = []
    for piece in pieces:
        uses = tuple(home.places[slot] for slot, _ in piece.parameters)
        source, threads = piece.source, piece.source.group or (1, 1, 1)
        kernels.append(Kernel(source.name, source.text, uses, source.launch, threads, piece.loops))
    text = "\n".join(kernel.source for kernel in kernels)
    return Program(tuple(kernels), home.temporaries, (), text)


@dataclass(frozen=True)
class _Piece:
    """A kernel, and for each of its parameters the slot and the bytes of the buffer."""

    source: Source
    parameters: tuple[tuple[int, int], ...]
    loops: Loops = ()


def _with_numbers(
    kind: Kind, buffers: Sequence[Buffer], outputs: Mapping[int, UOp], places: Places
) -> dict[int, UOp]:
    """Numbers of one type share a buffer: there may be few buffers, and one upload is enough."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, buffer in enumerate(buffers):
        if buffer.slot is None:
            by_dtype.setdefault(number_dtype(kind, buffer.dtype), []).append(i)
    values = list(outputs.values())
    if torch.float64 in kind.lacks:
        values = narrowed(values)
    shared: dict[UOp, UOp] = {}
    for dtype, numbers in by_dtype.items():
        pack = buffer_param(places.numbers(dtype), DTYPES[dtype], len(numbers))
        for k, i in enumerate(numbers):
            shared[buffer_param(i, DTYPES[dtype], 1)] = pack.shrink(((k, k + 1),))
    return dict(zip(outputs, substituted(sink_of(*values), shared).src, strict=True))


def _pieces(nest: Nest, length: int) -> int:
    if nest.size > _MOST_PIECES:
        return 1
    return max(1, min(_MOST_PIECES, length // _LEAST_LENGTH))


def _lowered(
    kind: Kind, opened: Opened, step: Nest | RoutineStep, new: Callable[[DType, int], UOp]
) -> Iterator[_Piece]:
    if isinstance(step, RoutineStep):
        yield from _routine(kind, opened, step)
        return
    for nest in _nests(step, opened.most_buffers, new):
        sink = nest.sink()
        parameters = [u for u in sink.toposort() if u.op is Ops.PARAM]
        if kind.most_elements and max(u.max_numel() for u in parameters) > kind.most_elements:
            raise NoLowering(f"{kind.name} counts elements in 32 bits")
        plain, slots = renumbered(sink)
        source = _rendered(kind, opened, plain)
        sizes = {u.arg.slot: nbytes(u) for u in parameters}
        yield _Piece(source, tuple((slots[k], sizes[slots[k]]) for k in source.slots))


def _nests(step: Nest, most_buffers: int, new: Callable[[DType, int], UOp]) -> Iterator[Nest]:
    for nest in without_repetition(step, new):
        for piece in cut_reductions(nest, new, _pieces):
            yield from with_few_buffers(piece, most_buffers, new) if most_buffers else [piece]


def _routine(kind: Kind, opened: Opened, step: RoutineStep) -> Iterator[_Piece]:
    """A factorization: a group of threads for each matrix of the batch, or for parts of it."""
    routine = step.routine
    if routine.batch > _MOST_GROUPS or any(
        dtype.itemsize not in (4, 8) for dtype, _ in routine.sizes
    ):
        raise NoLowering("a factorization of too many matrices, or of small types")
    is_small = max(size for _, size in routine.sizes) <= _SMALL
    threads = _FEW_THREADS if is_small else _MANY_THREADS
    sizes = [routine.batch * size * dtype.itemsize for dtype, size in routine.sizes]
    for one in emitted_for_groups(routine, kind.group_bytes, threads):
        source = render_linear(one.uops, opened.renderer, "k", kind.uniform_load)
        text, launch = kind.finish(source.text), (routine.batch, one.parts, 1)
        source = replace(source, text=text, launch=launch, group=(threads, 1, 1))
        uses = tuple((step.slots[k], sizes[k]) for k in source.slots)
        yield _Piece(source, uses, one.loops)


def _rendered(kind: Kind, opened: Opened, plain: UOp) -> Source:
    """Kernels that differ in their buffers only, as in an optimizer's step, are rendered once."""
    sources: dict[UOp, Source] = opened.__dict__.setdefault("sources", {})
    found = sources.get(plain)
    if found is None:
        source = render(plain, opened.renderer, "k", kind)
        found = replace(source, text=kind.finish(source.text))
        if len(sources) >= _MOST_RENDERED:
            sources.clear()
        sources[plain] = found
    return found


_MOST_RENDERED = 4096


def built(opened: Opened, given: Sequence[plan.Kernel]) -> list[Any]:
    """Kernels of the device, made once per text; together, which takes OpenCL less time."""
    kernels: dict[str, Any] = opened.__dict__.setdefault("kernels", {})
    if len(kernels) >= _MOST_RENDERED:
        kernels.clear()
    new = {one["source"]: one for one in given if one["source"] not in kernels}
    texts = [(one["name"], text, len(one["buffers"])) for text, one in new.items()]
    kernels |= zip(new, opened.build(texts), strict=True)
    return [kernels[one["source"]] for one in given]
