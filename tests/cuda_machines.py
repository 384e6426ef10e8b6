"""Where a program for CUDA can run: a GPU, in PyTorch's context, or a slow emulation on the CPU."""

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence, Set
from pathlib import Path

import torch

from torch_tiny.engine import cuda, cuda_compile
from torch_tiny.engine.codegen_home import Program

HEADER = Path(__file__).parent / "cuda_emulator.h"
C_KINDS = {torch.float64: ctypes.c_double, torch.int64: ctypes.c_longlong}


def arguments(kernel: cuda.CudaKernel, memory: Sequence[torch.Tensor], scratch, scalars: Set[int]):
    """The values of a kernel's parameters, as ctypes."""
    found = []
    for b in kernel.buffers:
        if b in scalars:
            found.append(C_KINDS[memory[b].dtype](memory[b].item()))
        else:
            found.append(ctypes.c_void_p((memory[b] if b >= 0 else scratch[-1 - b]).data_ptr()))
    return found


class Machine:
    device = "cpu"

    def load(self, program: Program[cuda.CudaKernel]) -> None:
        """Makes ready what `launch` starts."""
        raise NotImplementedError

    def launch(self, kernel: cuda.CudaKernel, values) -> None:
        raise NotImplementedError

    def run(
        self, program: Program[cuda.CudaKernel], memory, scalars: Set[int] = frozenset()
    ) -> None:
        """Runs a program in place on `memory`, tensors of this device; scalars are on the CPU."""
        scratch = [
            torch.full((max(n, 16),), 0xAB, dtype=torch.uint8, device=self.device)
            for n in program.temporaries
        ]
        for kernel in program.kernels:
            self.launch(kernel, arguments(kernel, memory, scratch, scalars))
        for temporary, buffer in program.copies:
            flat = memory[buffer].view(-1)
            flat.copy_(scratch[temporary][: flat.nbytes].view(flat.dtype))


class Gpu(Machine):
    """PyTorch's current stream and context, through the driver."""

    device = "cuda"

    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        self.functions: dict[str, ctypes.c_void_p] = {}

    def load(self, program: Program[cuda.CudaKernel]) -> None:
        module = ctypes.c_void_p()
        self.check(
            self.driver.cuModuleLoadData(
                ctypes.byref(module), cuda_compile.compile(program.source, self.arch)
            )
        )
        self.functions = {}
        for name in {k.name for k in program.kernels}:
            function = ctypes.c_void_p()
            self.check(
                self.driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            )
            self.functions[name] = function

    def launch(self, kernel: cuda.CudaKernel, values) -> None:
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(
            self.driver.cuLaunchKernel(
                self.functions[kernel.name], *kernel.grid, *kernel.block, kernel.shared, stream,
                table, None,
            )
        )  # fmt: skip

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"CUDA driver: error {status}")


class Emulator(Machine):
    """Blocks one by one, threads as fibers: g++ and cuda_emulator.h."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library: ctypes.CDLL | None = None

    def load(self, program: Program[cuda.CudaKernel]) -> None:
        text = program.source
        for given, ours in (
            ('asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));', "from_half(half)"),
            ('asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));', "to_half(value)"),
        ):
            target = "value" if "from" in ours else "half"
            text = text.replace(given, f"{target} = emulated_{ours};")
        launchers = (
            f'extern "C" void launch_{k.name}(void **p, emulated_index *at) {{ emulated_kernel ='
            f" [=] {{ {k.name}({self._passed(k)}); }}; emulated_launch(at[0], at[1]); }}"
            for k in {k.name: k for k in program.kernels}.values()
        )
        text = "\n".join((f'#include "{HEADER}"', text, *launchers))
        path = self.folder / f"{hashlib.sha1(text.encode()).hexdigest()}.so"
        command = ["g++", "-O1", "-std=c++17", "-w", "-fPIC", "-shared", "-ffp-contract=off"]
        command += ["-fno-strict-aliasing", "-x", "c++", "-", "-o", str(path)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        self.library = ctypes.CDLL(str(path))

    def _passed(self, kernel: cuda.CudaKernel) -> str:
        """The parameters, cast as the signature says."""
        inside = kernel.source.partition(f"{kernel.name}(")[2].partition(") {")[0]
        kinds = [one.replace("__restrict__", "").rpartition(" ")[0] for one in inside.split(", ")]
        kinds = [
            kind + ("*" if "*" in one and "*" not in kind else "")
            for kind, one in zip(kinds, inside.split(", "), strict=True)
        ]
        return ", ".join(f"*({kind} *)p[{i}]" for i, kind in enumerate(kinds))

    def launch(self, kernel: cuda.CudaKernel, values) -> None:
        assert self.library is not None
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        at = (ctypes.c_uint * 6)(*kernel.grid, *kernel.block)
        getattr(self.library, f"launch_{kernel.name}")(table, at)
