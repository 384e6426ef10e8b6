"""An AMD GPU for tinygrad: its queues and signals are lists and words of the host."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from emulated_compiler import CompileError, Kernel, Memory, compiled
from tinygrad.device import BufferSpec, TinyELF
from tinygrad.device import CompileError as TheirCompileError
from tinygrad.device import Compiler as TheirCompiler
from tinygrad.renderer.cstyle import HIPCCRenderer, HIPRenderer
from tinygrad.renderer.llvmir import AMDLLVMRenderer
from tinygrad.runtime.support.hcq import (
    CLikeArgsState,
    HCQAllocator,
    HCQBuffer,
    HCQCompiled,
    HCQProgram,
    HCQSignal,
    HWQueue,
    MMIOInterface,
)

ARCH = "gfx1100"
MOST_SHARED = 65536


class Compiler(TheirCompiler):
    """In place of HIPCompiler, for the renderer."""

    def __init__(self, _arch: str) -> None:
        super().__init__()

    def compile(self, text: str) -> bytes:
        try:
            return compiled(text, "hip", MOST_SHARED)
        except CompileError as error:
            raise TheirCompileError(str(error)) from error


class Signal(HCQSignal):
    def _sleep(self, _ms: int) -> None:
        self.owner.step()


class Queue(HWQueue):
    """Commands answer whether they could be done."""

    def __init__(self, waiting: deque[list[Callable[[], bool]]]) -> None:
        super().__init__()
        self._waiting = waiting
        self._commands: list[Callable[[], bool]] = []

    def wait(self, signal: Signal, value: int) -> Queue:
        self._commands.append(lambda: signal.value >= value)
        return self

    def signal(self, signal: Signal, value: int) -> Queue:
        def set_value() -> bool:
            signal.value = value
            return True

        self._commands.append(set_value)
        return self

    def memory_barrier(self) -> Queue:
        return self

    def exec(self, prg: AMDProgram, args: CLikeArgsState, groups: Any, threads: Any) -> Queue:
        self.bind_args_state(args)
        count = len(args.bufs)

        def run() -> bool:
            addresses = list((ctypes.c_uint64 * count).from_address(args.buf.va_addr))
            prg.kernel.run(addresses, groups, threads)
            for buffer in args.bufs:
                buffer.meta.check()
            return True

        self._commands.append(run)
        return self

    def copy(self, dest: HCQBuffer, src: HCQBuffer, size: int) -> Queue:
        def run() -> bool:
            ctypes.memmove(dest.va_addr, src.va_addr, size)
            dest.meta.check()
            return True

        self._commands.append(run)
        return self

    def _submit(self, _dev: AMDDevice) -> None:
        self._waiting.append(self._commands)


class AMDAllocator(HCQAllocator):
    def __init__(self, dev: AMDDevice) -> None:
        super().__init__(dev, batch_size=1 << 16, batch_cnt=3)

    def _alloc(self, size: int, _options: BufferSpec) -> HCQBuffer:
        memory = Memory(size)
        view = MMIOInterface(memory.address, size, fmt="B")
        return HCQBuffer(memory.address, size, meta=memory, view=view, owner=self.dev)

    def _do_free(self, opaque: HCQBuffer, _options: BufferSpec) -> None:
        opaque.meta.check()

    def _do_map(self, _buffer: HCQBuffer) -> None:
        pass


class AMDProgram(HCQProgram):
    def __init__(self, dev: AMDDevice, obj: TinyELF) -> None:
        self.kernel = Kernel(obj.lib)
        super().__init__(CLikeArgsState, dev, obj, kernargs_alloc_size=8 * len(obj.signature))


class AMDDevice(HCQCompiled):
    def __init__(self, device: str) -> None:
        self._compute: deque[list[Callable[[], bool]]] = deque()
        self._copies: deque[list[Callable[[], bool]]] = deque()
        super().__init__(
            device,
            AMDAllocator(self),
            [HIPRenderer, AMDLLVMRenderer, HIPCCRenderer],
            AMDProgram,
            Signal,
            partial(Queue, self._compute),
            partial(Queue, self._copies),
            kernargs_size=1 << 20,
            arch=ARCH,
        )

    def step(self) -> None:
        """Do what can be done; copies first, which is wrong where nobody waits."""
        for waiting in (self._copies, self._compute):
            while waiting:
                commands = waiting[0]
                while commands and commands[0]():
                    commands.pop(0)
                if commands:
                    break
                waiting.popleft()
