"""Metal: Apple's GPUs. Tested in an emulation of them (tests/emulated), not on such a machine."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from torch_tiny.portable import msl, wgsl
from torch_tiny.portable.kind import C_FUNCTIONS, C_INTEGERS, Kind, Launch, Opened

# Metal has no functions by these names, or may be off by more than a few bits.
_OWN = (*("atan2", "erf", "erfc", "expm1", "fmod", "hypot", "lgamma", "log1p", "nextafter", "pow"),)
_PRECISE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "log"),
    *("log10", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
)
_FUNCTIONS = {
    **C_FUNCTIONS,
    **{name: f"precise::{C_FUNCTIONS[name]}" for name in _PRECISE},
    **{name: wgsl.template(name) for name in _OWN},
    "largest_nan": "({0} != {0} ? as_type<float>(0x7fffffff) : {0})",
}
_MOST_IN_FLIGHT = 512
_BEGIN = "using namespace metal;\n"
_PRAGMA = "#pragma clang fp contract(off)\n"  # a*b+c is rounded twice, as on the CPU


class _Opened(Opened):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        from torch_tiny.uops import metal

        self.most_buffers = metal.MOST_BUFFERS
        self.renderer = metal.Renderer(self.renderer.target)

    def copy_in(self, memory: Any, data: memoryview) -> None:
        from torch_tiny.uops.metal import part

        super().copy_in(part(self.device, memory, data.nbytes), data)

    def copy_out(self, data: memoryview, memory: Any) -> None:
        from torch_tiny.uops.metal import part

        super().copy_out(data, part(self.device, memory, data.nbytes))

    def run(self, launches: Sequence[Launch]) -> None:
        from torch_tiny.uops.metal import count_in_flight

        super().run(launches)
        if count_in_flight(self.device) > _MOST_IN_FLIGHT:
            self.wait()


class Metal(Kind):
    name = "metal"
    device = "METAL"
    lacks = (torch.float64, torch.complex128)
    advice = "make the tensor in float32, or on the CPU"
    functions = _FUNCTIONS
    integers = C_INTEGERS

    def why_not(self) -> str | None:
        return None if sys.platform == "darwin" else "Metal is part of macOS"

    def open(self, index: int) -> Opened:
        if index:
            raise ValueError("Metal has one device: metal")
        return _Opened(self.device)

    def finish(self, text: str) -> str:
        # Threads of a group meet over arguments too.
        both = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)"
        text = text.replace("threadgroup_barrier(mem_flags::mem_threadgroup)", both)
        head, begin, rest = text.partition(_BEGIN)
        return f"{head}{begin}{_PRAGMA}{msl.needed(rest)}\n{rest}"


KIND = Metal()
