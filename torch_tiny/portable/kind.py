"""What a kind of portable device has to say of itself. Each kind is a file in kinds/."""

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tiny.lower.promote import NoLowering
from torch_tiny.uops import DType, dtypes

Text = tuple[str, str, int]
"""Of a kernel: its name, its source, and how many buffers it has."""


@dataclass
class Launch:
    """One kernel on its buffers, which are numbers until it runs."""

    kernel: Any
    buffers: Sequence[Any]
    groups: Sequence[int]
    threads: Sequence[int]


class Opened:
    """A device in use. Memory and kernels are tinygrad's; a kind may do better."""

    most_buffers = 0
    """How many buffers a kernel may have; 0 for no limit."""

    def __init__(self, name: str) -> None:
        from torch_tiny.uops import device

        self.name = name
        self.lock = threading.RLock()
        """For one thread at a time: drivers and tinygrad's runtimes keep state between calls."""
        self.device = device.open_device(name)
        self.renderer = self.device.renderer

    def allocate(self, nbytes: int) -> Any:
        """New memory; a MemoryError if there is not that much."""
        return self.device.allocator.alloc(max(nbytes, 4))

    def free(self, memory: Any, nbytes: int) -> None:
        self.device.allocator.free(memory, max(nbytes, 4))

    def empty_cache(self) -> None:
        """Give back memory that is kept for the next buffers; tinygrad keeps some."""
        if hasattr(self.device.allocator, "free_cache"):
            self.device.allocator.free_cache()

    def copy_in(self, memory: Any, data: memoryview) -> None:
        # Some devices read it later, and it is the host's to change.
        self.device.allocator._copyin(memory, memoryview(bytearray(data)))

    def copy_out(self, data: memoryview, memory: Any) -> None:
        self.device.synchronize()
        self.device.allocator._copyout(data, memory)

    def copy(self, to: Any, of: Any, nbytes: int) -> None:
        """Within the device, after what was asked of it before."""
        if self.device.allocator.supports_transfer:
            self.device.allocator._transfer(to, of, nbytes, self.device, self.device)
        else:
            data = memoryview(bytearray(nbytes))
            self.copy_out(data, of)
            self.copy_in(to, data)

    def build(self, texts: Sequence[Text]) -> list[Any]:
        """Kernels from their texts; raises what the device's compiler says."""
        from torch_tiny.uops import device

        return [device.program(self.device, self.renderer, *one) for one in texts]

    def run(self, launches: Sequence[Launch]) -> None:
        """Kernels one after the other."""
        for one in launches:
            one.kernel(*one.buffers, global_size=one.groups, local_size=one.threads)

    def wait(self) -> None:
        self.device.synchronize()

    def describe(self) -> str:
        """What kernels depend on."""
        return f"{self.renderer.target} {self.most_buffers}"


class Kind:
    """A kind of device, before any is opened."""

    name: str
    """As in TORCH_TINY_DEVICES, and of the file."""
    device: str
    """tinygrad's name."""
    lacks: tuple[torch.dtype, ...] = ()
    advice: str = ""
    """What to do about the types that are missing."""
    functions: Mapping[str, str] = {}
    """Float operators as text of the kernel language."""
    integers: Mapping[DType, tuple[str, str]] = {}
    """The names of integer types in C, each with that of the unsigned one to compute in."""
    most_elements: int | None = None
    """Of a buffer that kernels can count; None where they count in 64 bits."""
    group_bytes: int = 15 << 10
    """Of work memory that a group of threads shares."""
    uniform_load: str = "(*{0})"
    """A load of that memory which is the same for all threads."""

    def why_not(self) -> str | None:
        """What is missing to use it here and how to get it; None if nothing is known to be."""
        return None

    def prepare(self) -> None:
        """Sets what its libraries want in the environment, before anyone opens a device."""

    def open(self, index: int) -> Opened:
        return Opened(self.tinygrad_name(index))

    def tinygrad_name(self, index: int) -> str:
        return f"{self.device}:{index}" if index else self.device

    def template(self, name: str, dtype: DType) -> str:  # noqa: ARG002
        """The text of a float operator on {0} and {1}."""
        if name not in self.functions:
            raise NoLowering(f"{self.name} has no {name}")
        return self.functions[name]

    def integer(self, operator: str, dtype: DType) -> str | None:
        """The text of an integer operator that wraps around; None where the language's own does."""
        if operator == "cast" or dtype not in self.integers:
            return None
        own, unsigned = self.integers[dtype]
        left, right = f"({unsigned}){{0}}", f"({unsigned}){{1}}"
        texts = {"neg": f"-{left}", "<<": f"{left}<<{{1}}", "/": "{0}/{1}", "wrap": left}
        text = texts.get(operator, f"{left}{operator}{right}")
        if dtype in (dtypes.int8, dtypes.int16):
            # Converting alone is not enough: NVIDIA's OpenCL makes -(-32768) positive.
            unused = 32 - 8 * dtype.itemsize
            text = f"(int)(({unsigned})({text})<<{unused})>>{unused}"
        return f"(({own})({text}))"

    def rounded(self, dtype: DType) -> str | None:  # noqa: ARG002
        """The operator that rounds a float32 to a half type; None where converting does that."""
        return None

    def finish(self, text: str) -> str:
        """A kernel with what its functions need."""
        return text


def find_kind(name: str) -> Kind:
    """The kind of a name; hosts.portable_kinds has them all."""
    kind: Kind = importlib.import_module(f"torch_tiny.portable.kinds.{name}").KIND
    return kind


# --- C-like languages ---

C_UNARY = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc"),
    *("exp", "exp2", "expm1", "fabs", "floor", "lgamma", "log", "log10", "log1p", "log2", "rint"),
    *("sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
C_BINARY = ("atan2", "copysign", "fmod", "hypot", "nextafter", "pow")

C_FUNCTIONS: dict[str, str] = {
    "add": "({0}+{1})",
    "sub": "({0} - {1})",  # which may be a negative number
    "mul": "({0}*{1})",
    "div": "({0}/{1})",
    "neg": "(- {0})",
    "differ": "({0} != {1})",
    "reciprocal": "(1/{0})",
    "maximum": "(({0} < {1}) || ({1} != {1}) ? {1} : {0})",
    "minimum": "(({1} < {0}) || ({1} != {1}) ? {1} : {0})",
    "fmax": "(({0} < {1}) || ({0} != {0}) ? {1} : {0})",
    "fmin": "(({1} < {0}) || ({0} != {0}) ? {1} : {0})",
    "integer": "({0} >= -2147483648.0f && {0} < 2147483648.0f ? (int)({0}) : (-2147483647 - 1))",
    **{name: f"{name}({{0}})" for name in C_UNARY},
    **{name: f"{name}({{0}}, {{1}})" for name in C_BINARY},
}
"""What C and OpenCL C have by these names."""

C_INTEGERS: dict[DType, tuple[str, str]] = {
    **{
        getattr(dtypes, name): (name, "uint")
        for name in ("char", "uchar", "short", "ushort", "int")
    },
    dtypes.int64: ("long", "ulong"),
}
"""As OpenCL C and Metal name them."""
