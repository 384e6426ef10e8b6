"""What a plan is compiled for: C on cpu memory, CUDA on a GPU. A target is a class here."""

import _ctypes
import ctypes
import re
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Protocol, cast

import numpy as np

from torch_tiny.engine import c_math, codegen, codegen_place, cuda, cuda_compile, cuda_renderer
from torch_tiny.engine.codegen_home import Part, Program
from torch_tiny.engine.cuda_shape import WIDEST_LOAD
from torch_tiny.engine.loadable import as_file
from torch_tiny.engine.plan import Kernel
from torch_tiny.uops import UOp
from torch_tiny.values import Buffer, Values

# Trying loop shapes must not take the machine's memory, nor long.
_MOST_BYTES_TRIED = 256 << 20
_TRIES = 5


class Target(Protocol):
    can_check: bool
    """Whether a region can look at its data before it runs."""
    takes_sizes: bool = True
    """Whether kernels can be told how many elements to work on."""
    told: tuple[str, ...]
    """What the core is told of a kernel besides its name and buffers."""

    def ways(self, buffers: list[Buffer], /) -> Sequence[str]:
        """To write a region of these, the likely best first; others where they can be timed."""

    def generate(self, own: Values, outputs: Mapping[int, UOp], variant: str) -> Program[Any]:
        """Code for the outputs of a region; a buffer after the last may be an output too."""

    def step(self, _size: int, _begins: Iterable[int], /) -> int:
        """How many elements at a time a kernel may work on where tensors begin at these bytes."""
        return 1

    def takes_any_size(self, _program: Program[Any], _size: int, /) -> bool:
        """Whether its one kernel, made for so many elements, can be told another number of them."""
        return False

    def joined(self, _parts: Sequence[Part[Any]], _numbers: Set[int], /) -> Program[Any]:
        """One program of such kernels. numbers: places that are no memory."""
        raise AssertionError("its kernels take no sizes")

    def build(self, programs: Mapping[str, Program[Any]]) -> bytes:
        """Programs compiled together; kernels get the name of their program as a prefix."""

    def times(
        self, _library: bytes, tried: Sequence[Program[Any]], _buffers: list[Buffer], /
    ) -> list[float]:
        """Seconds of programs v0, v1, ... that do the same in different ways."""
        return [0.0 for _ in tried]  # where there is one way, nobody asks

    def kernels(self, program: Program[Any], prefix: str) -> list[Kernel]:
        """The kernels of a program as the core is told of them."""
        kept = ("name", "buffers", *self.told)
        told = ({what: getattr(k, what) for what in kept} for k in program.kernels)
        return [cast(Kernel, one | {"name": prefix + one["name"]}) for one in told]


def target_of(name: str) -> Target:
    """ "cpu", or "sm_90" and the like."""
    return Cpu() if name == "cpu" else Cuda(name)


class Cpu(Target):
    can_check = True
    told = ("parallel", "work")

    def ways(self, buffers: list[Buffer]) -> Sequence[str]:
        total = sum(buffer.nbytes for buffer in buffers)
        return codegen.VARIANTS if total <= _MOST_BYTES_TRIED else codegen.VARIANTS[:1]

    def generate(self, own: Values, outputs: Mapping[int, UOp], variant: str) -> Program[Any]:
        buffers = own.typed()
        extra = [(value.dtype, 1) for i, value in outputs.items() if i == len(buffers)]
        return codegen.generate([*buffers, *extra], outputs, variant)

    def takes_any_size(self, program: Program[Any], size: int) -> bool:
        return codegen_place.takes_any_size(program.kernels[0], size)

    def joined(self, parts: Sequence[Part[Any]], _numbers: Set[int]) -> Program[Any]:
        return codegen_place.joined(parts)

    def build(self, programs: Mapping[str, Program[Any]]) -> bytes:
        prototypes: set[str] = set()
        for program in programs.values():
            prototypes.update(program.source.partition(c_math.HELPERS)[0].splitlines())
        text = "\n".join((*sorted(prototypes), c_math.HELPERS, *_prefixed(programs)))
        return codegen.shared_object(text)

    def times(
        self, library: bytes, tried: Sequence[Program[Any]], buffers: list[Buffer]
    ) -> list[float]:
        """On made-up data; zeros are valid as any type, also as an index."""
        arrays = [np.zeros(buffer.nbytes, np.uint8) for buffer in buffers]
        with as_file(library) as path:
            loaded = ctypes.CDLL(path)
        try:
            return [_seconds(loaded, f"v{k}", program, arrays) for k, program in enumerate(tried)]
        finally:
            _ctypes.dlclose(loaded._handle)


class Cuda(Target):
    can_check = False  # a GPU's own kernels do not raise either: they end the context
    told = ("grid", "block", "shared")

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture

    def ways(self, _buffers: list[Buffer]) -> Sequence[str]:
        return cuda.VARIANTS[:1]  # which one is faster is not known without the GPU

    def generate(self, own: Values, outputs: Mapping[int, UOp], variant: str) -> Program[Any]:
        numbers = {i for i, buffer in enumerate(own.buffers) if buffer.slot is None}
        return cuda.generate(own.typed(), outputs, numbers, variant)

    def step(self, size: int, begins: Iterable[int]) -> int:
        wide = WIDEST_LOAD
        return 1 if size % wide or any(begin % wide for begin in begins) else wide

    def takes_any_size(self, program: Program[Any], _size: int) -> bool:
        return cuda.takes_any_size(program.kernels[0])

    def joined(self, parts: Sequence[Part[Any]], numbers: Set[int]) -> Program[Any]:
        return cuda.joined(parts, numbers)

    def build(self, programs: Mapping[str, Program[Any]]) -> bytes:
        text = "\n".join((cuda_renderer.HELPERS, *_prefixed(programs)))
        return cuda_compile.compile(text, self._architecture)


def _prefixed(programs: Mapping[str, Program[Any]]) -> list[str]:
    """The text of all kernels. Kernels of a program that are the same function share a name."""
    texts = []
    for prefix, program in programs.items():
        for name, source in {kernel.name: kernel.source for kernel in program.kernels}.items():
            texts.append(re.sub(rf"\b({name}(_body)?)(?=\()", rf"{prefix}_\1", source))
    return texts


def _seconds(
    library: ctypes.CDLL,
    prefix: str,
    program: Program[Any],
    arrays: list["np.ndarray[Any, Any]"],
) -> float:
    scratch = [np.zeros(max(size, 64), np.uint8) for size in program.temporaries]
    shortest = float("inf")
    for _ in range(_TRIES):
        begin = time.perf_counter()
        for kernel in program.kernels:
            pointers = [arrays[b] if b >= 0 else scratch[-1 - b] for b in kernel.buffers]
            table = (ctypes.c_void_p * len(pointers))(*(a.ctypes.data for a in pointers))
            function = getattr(library, f"{prefix}_{kernel.name}")
            function(table, ctypes.c_int64(0), ctypes.c_int64(kernel.parallel))
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest
