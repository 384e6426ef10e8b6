"""OpenCL: GPUs of all makers, and CPUs through PoCL."""

import ctypes.util
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_tiny.portable import pocl
from torch_tiny.portable.kind import C_FUNCTIONS, C_INTEGERS, Kind, Launch, Opened, Text
from torch_tiny.uops import DType, dtypes

_HEAD = "#pragma OPENCL FP_CONTRACT OFF\n"  # a*b+c is rounded twice, as on the CPU
# OpenCL C has no type for halves by itself, but reads and writes them. Kernels are built together.
_ROUND_HALF = """#ifndef TT_ROUND_HALF
#define TT_ROUND_HALF
float tt_round_half(float x) {
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return vload_half(0, (half*)&bits);
}
#endif
"""
_TOGETHER = 64  # kernels in a program: PoCL takes as long for one


class _Opened(Opened):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        from torch_tiny.uops.opencl import rounding, version

        self._declares = "PoCL" in version(self.device)
        self._rounding = rounding(self.device)

    def build(self, texts: Sequence[Text]) -> list[Any]:
        made = []
        for begin in range(0, len(texts), _TOGETHER):
            made += self._program([text[:2] for text in texts[begin : begin + _TOGETHER]])
        return made

    def _program(self, texts: Sequence[tuple[str, str]]) -> list[Any]:
        from torch_tiny.uops import opencl

        if self._declares:
            with suppress(RuntimeError):
                option = f"{self._rounding} {pocl.OPTION}"
                return opencl.build(self.device, texts, pocl.declarations(), option)
        made = opencl.build(self.device, texts, option=self._rounding)
        self._declares = False  # another PoCL, or a function that we do not know of
        return made

    def copy(self, to: Any, of: Any, nbytes: int) -> None:
        from torch_tiny.uops.opencl import copy

        copy(self.device, to, of, nbytes)

    def run(self, launches: Sequence[Launch]) -> None:
        for one in launches:
            one.kernel(one.buffers, one.groups, one.threads)


class OpenCl(Kind):
    name = "cl"
    device = "CL"
    functions = C_FUNCTIONS | {"round_half": "tt_round_half({0})"}
    integers = C_INTEGERS

    def why_not(self) -> str | None:
        if ctypes.util.find_library("OpenCL") is None:
            return (
                "no libOpenCL was found: install a driver, or PoCL for the CPU "
                "(Debian: apt install pocl-opencl-icd ocl-icd-libopencl1)"
            )
        return None

    def prepare(self) -> None:
        # PoCL 3 hands threads to a vectorizer whose masks of AVX-512 its LLVM 14 aborts on. Other
        # drivers do not look at this.
        processor = Path("/proc/cpuinfo")
        if processor.exists() and "avx512" in processor.read_text():
            os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loops")

    def open(self, index: int) -> Opened:
        self.prepare()
        try:
            return _Opened(self.tinygrad_name(index))
        except RuntimeError as error:
            raise RuntimeError(
                f"no OpenCL device could be opened ({error}): install the driver of the GPU, or "
                "PoCL for the CPU (Debian: pocl-opencl-icd; `make devices` does), see clinfo"
            ) from error

    def template(self, name: str, dtype: DType) -> str:
        if name == "largest_nan":
            nan = "as_float(0x7fffffff)"
            if dtype == dtypes.float64:
                nan = "as_double(0x7fffffffffffffffl)"
            return f"({{0}} != {{0}} ? {nan} : {{0}})"
        return super().template(name, dtype)

    def rounded(self, dtype: DType) -> str | None:
        return "round_half" if dtype == dtypes.float16 else None

    def finish(self, text: str) -> str:
        # Threads of a group meet over arguments too.
        both = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)"
        needed = _ROUND_HALF if "tt_round_half(" in text else ""
        return _HEAD + needed + text.replace("barrier(CLK_LOCAL_MEM_FENCE)", both)


KIND = OpenCl()
