"""Metal through tinygrad: what its renderer and its allocator do otherwise here."""

import struct
from typing import Any

from tinygrad.dtype import float_to_bf16
from tinygrad.renderer.cstyle import (
    MetalRenderer,
    create_non_native_float_pats,
    pm_manual_bf16_cast,
)

from torch_tiny.uops import DType, PatternMatcher, UOp, UPat, dtypes

MOST_BUFFERS = 31
"""Of a kernel, in Metal's table of arguments."""


def _bits(c: UOp) -> str:
    (bits,) = struct.unpack("I", struct.pack("f", float_to_bf16(c.val)))  # type: ignore[no-untyped-call]
    return f"{bits >> 16}u"


class Renderer(MetalRenderer):
    """bfloat16 is its bits: macOS 13 has no such type, and Macs with Intel never do."""

    type_map = MetalRenderer.type_map | {dtypes.bfloat16: "ushort"}
    extra_matcher = create_non_native_float_pats((dtypes.bfloat16,)) + pm_manual_bf16_cast
    string_rewrite = (
        PatternMatcher([(UPat.cvar("c").cast(dtypes.bfloat16), lambda c: _bits(c))])
        + MetalRenderer.string_rewrite
    )

    def supported_dtypes(self) -> set[DType]:
        return {*super().supported_dtypes(), dtypes.bfloat16}  # type: ignore[no-untyped-call]


def part(device: Any, memory: Any, nbytes: int) -> Any:
    """The beginning of a buffer: tinygrad copies all of one, to and from as many bytes."""
    return device.allocator._offset(memory, nbytes, memory.offset)


def count_in_flight(device: Any) -> int:
    """How many kernels tinygrad keeps until someone waits for them."""
    return len(device.mtl_buffers_in_flight)
