"""What of Objective-C and Metal tinygrad's ops_metal.py calls. Queues run when waited for."""

# ruff: noqa: N802  (the names are Apple's)

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from emulated_compiler import CompileError, Kernel, Memory, compiled
from tinygrad.device import CompileError as TheirCompileError
from tinygrad.device import Compiler as TheirCompiler

MOST_SHARED = 32768
MOST_BUFFERS = 31


class Object:
    value: int | None = 1

    def retained(self) -> Any:
        return self


class NSError(ctypes.c_void_p):
    def __init__(self, text: str | None = None) -> None:
        super().__init__(None if text is None else 1)
        self.text = text

    def retained(self) -> NSError:
        return self

    def localizedDescription(self) -> NSError:
        return self


class Device(Object):
    def newCommandQueueWithMaxCommandBufferCount(self, _count: int) -> Queue:
        return Queue()

    def newSharedEvent(self) -> Object:
        return Object()

    def supportsFamily(self, family: int) -> bool:
        return family == 1008

    def name(self) -> str:
        return "emulated"

    def newBufferWithLength_options(self, size: int, _options: int) -> Buffer:
        return Buffer(size)

    def newLibraryWithData_error(self, data: bytes, _error: Any) -> Library:
        return Library(data)

    def newComputePipelineStateWithDescriptor_options_reflection_error(
        self, descriptor: Descriptor, *_rest: Any
    ) -> Pipeline:
        return Pipeline(descriptor.library)


class Buffer(Object):
    retain = False

    def __init__(self, size: int) -> None:
        self.memory = Memory(size)

    def contents(self) -> int:
        return self.memory.address

    def release(self) -> None:
        self.memory.check()


class Library(Object):
    def __init__(self, data: bytes) -> None:
        self.data = data

    def newFunctionWithName(self, _name: str) -> Library:
        return self


class Descriptor(Object):
    library: Library

    @classmethod
    def new(cls) -> Descriptor:
        return cls()

    def setComputeFunction(self, library: Library) -> None:
        self.library = library

    def setSupportIndirectCommandBuffers(self, _yes: bool) -> None:
        pass


class Pipeline(Object):
    def __init__(self, library: Library) -> None:
        self.kernel = Kernel(library.data)

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return 1024


class Queue(Object):
    def __init__(self) -> None:
        self.committed: list[CommandBuffer] = []

    def commandBuffer(self) -> CommandBuffer:
        return CommandBuffer(self)


class CommandBuffer(Object):
    """It is a compute encoder and a blit encoder too."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.buffers: dict[int, tuple[Buffer, int]] = {}
        self.work: list[Any] = []
        self.text: str | None = None

    def computeCommandEncoder(self) -> CommandBuffer:
        return self

    def blitCommandEncoder(self) -> CommandBuffer:
        return self

    def setComputePipelineState(self, pipeline: Pipeline) -> None:
        self.kernel = pipeline.kernel

    def setBuffer_offset_atIndex(self, buffer: Buffer, offset: int, index: int) -> None:
        assert index < MOST_BUFFERS, "too many buffers"
        self.buffers[index] = (buffer, offset)

    def dispatchThreadgroups_threadsPerThreadgroup(
        self, groups: tuple[int, ...], threads: tuple[int, ...]
    ) -> None:
        kernel, buffers = self.kernel, [self.buffers[i] for i in sorted(self.buffers)]

        def run() -> None:
            kernel.run([buffer.contents() + offset for buffer, offset in buffers], groups, threads)
            for buffer, _ in buffers:
                buffer.memory.check()

        self.work.append(run)

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        self, of: Buffer, from_offset: int, to: Buffer, to_offset: int, size: int
    ) -> None:
        self.work.append(
            lambda: ctypes.memmove(to.contents() + to_offset, of.contents() + from_offset, size)
        )

    def endEncoding(self) -> None:
        pass

    def setLabel(self, _label: str) -> None:
        pass

    def commit(self) -> None:
        self.queue.committed.append(self)

    def waitUntilCompleted(self) -> None:
        while self in self.queue.committed:
            first = self.queue.committed.pop(0)
            try:
                for one in first.work:
                    one()
            except (RuntimeError, AssertionError) as error:
                first.text = str(error)

    def error(self) -> NSError:
        return NSError(self.text)

    def GPUStartTime(self) -> float:
        return 0.0

    GPUEndTime = GPUStartTime


class Compiler(TheirCompiler):
    """In place of MetalCompiler, for the renderer."""

    def compile(self, text: str) -> bytes:
        try:
            return compiled(text, "metal", MOST_SHARED)
        except CompileError as error:
            raise TheirCompileError(str(error)) from error


def modules() -> dict[str, ModuleType]:
    """In place of those that load Apple's libraries."""
    objc = ModuleType("tinygrad.runtime.support.objc")
    objc.dispatch_data_create = lambda data, *_rest: data  # type: ignore[attr-defined]
    metal = ModuleType("tinygrad.runtime.autogen.metal")
    vars(metal).update(
        MTLCreateSystemDefaultDevice=Device,
        enum_MTLGPUFamily={1007: "MTLGPUFamilyApple7", 1008: "MTLGPUFamilyApple8"},
        MTLComputePipelineDescriptor=Descriptor,
        MTLCommandBuffer=CommandBuffer,
        MTLBuffer=Buffer,
        NSError=NSError,
        MTLSize=lambda *sizes: sizes,
        MTLResourceStorageModeShared=0,
        MTLPipelineOptionNone=0,
    )
    graph = ModuleType("tinygrad.runtime.graph.metal")
    graph.MetalGraph = None  # type: ignore[attr-defined]
    return {module.__name__: module for module in (objc, metal, graph)}
