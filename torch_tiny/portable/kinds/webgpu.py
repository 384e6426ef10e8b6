"""WebGPU, through Dawn: any GPU with Vulkan, Metal or D3D12, and CPUs through a software Vulkan."""

import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_tiny.portable import wgsl
from torch_tiny.portable.interrupts import uninterrupted
from torch_tiny.portable.kind import Kind, Launch, Opened, Text
from torch_tiny.portable.pool import Pool
from torch_tiny.uops import DType

_MOST_KEPT = 1 << 30  # bytes; Dawn makes every buffer anew


class _Opened(Opened):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        from torch_tiny.uops import webgpu

        self._runner = webgpu.Runner(self.device)
        self.most_buffers = webgpu.most_buffers(self.device)
        self._most_bytes = webgpu.most_bytes(self.device)
        self._pool = Pool(_MOST_KEPT)

    @uninterrupted
    def allocate(self, nbytes: int) -> Any:
        from torch_tiny.uops.webgpu import allocate

        nbytes = max(nbytes, 4)
        kept = self._pool.take(nbytes)
        if kept is not None:
            return kept
        try:
            return allocate(self.device, nbytes, self._most_bytes)
        except MemoryError:
            self.empty_cache()
            return allocate(self.device, nbytes, self._most_bytes)

    def free(self, memory: Any, nbytes: int) -> None:
        for old, size in self._pool.give(memory, max(nbytes, 4)):
            super().free(old, size)

    def empty_cache(self) -> None:
        for old, size in self._pool.clear():
            super().free(old, size)

    @uninterrupted
    def build(self, texts: Sequence[Text]) -> list[Any]:
        from torch_tiny.uops.webgpu import Pipeline

        return [Pipeline(self.device, *one) for one in texts]

    @uninterrupted
    def copy(self, to: Any, of: Any, nbytes: int) -> None:
        self._runner.copy(to, of, nbytes)

    @uninterrupted
    def run(self, launches: Sequence[Launch]) -> None:
        self._runner.run([(one.kernel, one.buffers, one.groups) for one in launches])

    copy_out = uninterrupted(Opened.copy_out)
    wait = uninterrupted(Opened.wait)


class WebGpu(Kind):
    name = "webgpu"
    device = "WEBGPU"
    lacks = (torch.float64, torch.complex128)
    most_elements = (1 << 31) - 1
    uniform_load = "workgroupUniformLoad(&{0}[0])"
    advice = (
        "make the tensor in float32 (dtype=torch.float32, or .float() before .to), or on the CPU"
    )

    def why_not(self) -> str | None:
        if "WEBGPU_PATH" not in os.environ and _dawn() is None:
            return "Dawn was not found: pip install dawn-python==0.3.0, or set WEBGPU_PATH"
        return None

    def prepare(self) -> None:
        path = _dawn()
        if path is not None:
            os.environ.setdefault("WEBGPU_PATH", str(path))
        if sys.platform == "linux":  # without a Vulkan driver Dawn would answer with garbage
            os.environ.setdefault("WEBGPU_BACKEND", "WGPUBackendType_Vulkan")

    def open(self, index: int) -> Opened:
        if index:
            raise ValueError("WebGPU has one device: webgpu")
        self.prepare()
        try:
            return _Opened(self.device)
        except RuntimeError as error:
            raise RuntimeError(
                f"no WebGPU device could be opened ({error}): install a Vulkan driver "
                "(Debian: mesa-vulkan-drivers, version 25 or newer; `make devices` does)"
            ) from error

    def template(self, name: str, dtype: DType) -> str:  # noqa: ARG002
        return wgsl.template(name)

    def integer(self, operator: str, dtype: DType) -> str | None:
        return wgsl.integer(operator, dtype)

    def rounded(self, dtype: DType) -> str | None:
        return wgsl.ROUNDED.get(dtype)

    def finish(self, text: str) -> str:
        head, uniform, rest = text.partition("var<uniform> INFINITY : f32;\n")
        rest = rest.replace("workgroupBarrier();", "workgroupBarrier(); storageBarrier();")
        functions = "\n".join(wgsl.needed(text).values())
        return f"{head}{uniform}{functions}\n{rest}"


def _dawn() -> Path | None:
    """The library in PyPI's dawn-python."""
    found = importlib.util.find_spec("pydawn")
    if found is None or found.origin is None:
        return None
    machine = {"arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    names = {
        "linux": f"libwebgpu_dawn_{machine}.so",
        "darwin": f"libwebgpu_dawn_{platform.machine()}.dylib",
        "win32": "libwebgpu_dawn.dll",
    }
    path = Path(found.origin).parent / "lib" / names.get(sys.platform, "")
    return path if path.is_file() else None


KIND = WebGpu()
