"""Running WGSL: pipelines are made once per kernel, and the kernels of a region are one submit."""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinygrad.runtime.autogen import webgpu as bindings
from tinygrad.runtime.ops_webgpu import DeviceCreateComputePipeline, to_wgpu_str

webgpu: Any = bindings  # which have no types

Launch = tuple["Pipeline", Sequence[Any], Sequence[int]]
"""A kernel, its buffers, and how many groups of threads."""


class Pipeline:
    """A kernel of WGSL on a device of tinygrad's."""

    def __init__(self, device: Any, name: str, text: str, buffers: int) -> None:
        gpu, count = device.device_res, 1 + buffers
        each = (_entry(i, "Storage" if i else "Uniform") for i in range(count))
        entries = (webgpu.WGPUBindGroupLayoutEntry * count)(*each)
        bindings = webgpu.WGPUBindGroupLayoutDescriptor(entryCount=count, entries=entries)
        chain = webgpu.WGPUChainedStruct(sType=webgpu.WGPUSType_ShaderSourceWGSL)
        code = webgpu.WGPUShaderModuleWGSLDescriptor(code=to_wgpu_str(text), chain=chain)
        chained = ctypes.POINTER(webgpu.struct_WGPUChainedStruct)
        shader = webgpu.WGPUShaderModuleDescriptor(
            nextInChain=ctypes.cast(ctypes.pointer(code), chained)
        )
        with _checked(device):
            self.layout = webgpu.wgpuDeviceCreateBindGroupLayout(gpu, bindings)
            layouts = (webgpu.WGPUBindGroupLayout * 1)(self.layout)
            whole = webgpu.WGPUPipelineLayoutDescriptor(
                bindGroupLayoutCount=1, bindGroupLayouts=layouts
            )
            pipelines = webgpu.wgpuDeviceCreatePipelineLayout(gpu, whole)
            module = webgpu.wgpuDeviceCreateShaderModule(gpu, shader)
        compute = webgpu.WGPUComputeState(module=module, entryPoint=to_wgpu_str(name))
        how = webgpu.WGPUComputePipelineDescriptor(layout=pipelines, compute=compute)
        try:
            self.pipeline = DeviceCreateComputePipeline(gpu, how)
        finally:
            webgpu.wgpuShaderModuleRelease(module)
            webgpu.wgpuPipelineLayoutRelease(pipelines)

    def __del__(self) -> None:
        # A process that ends, or one that was forked and ends, leaves the driver alone.
        if hasattr(self, "pipeline") and not sys.is_finalizing():
            webgpu.wgpuComputePipelineRelease(self.pipeline)
            webgpu.wgpuBindGroupLayoutRelease(self.layout)


class Runner:
    """Launches kernels on a device of tinygrad's."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._infinity = device.create_uniform(float("inf"))  # tinygrad's WGSL takes it as input

    def run(self, launches: Sequence[Launch]) -> None:
        """All of them, in order."""
        groups: dict[tuple[int, ...], Any] = {}  # kernels that are repeated share theirs
        with self._submitted() as encoder:
            compute = webgpu.wgpuCommandEncoderBeginComputePass(
                encoder, webgpu.WGPUComputePassDescriptor()
            )
            for pipeline, buffers, size in launches:
                key = (id(pipeline), *map(id, buffers))
                if key not in groups:
                    groups[key] = self._group(pipeline, buffers)
                webgpu.wgpuComputePassEncoderSetPipeline(compute, pipeline.pipeline)
                webgpu.wgpuComputePassEncoderSetBindGroup(compute, 0, groups[key], 0, None)
                webgpu.wgpuComputePassEncoderDispatchWorkgroups(compute, *size)
            webgpu.wgpuComputePassEncoderEnd(compute)
        for group in groups.values():
            webgpu.wgpuBindGroupRelease(group)
        webgpu.wgpuComputePassEncoderRelease(compute)

    def copy(self, to: Any, of: Any, nbytes: int) -> None:
        """From buffer to buffer, after what was submitted before."""
        size = -(-nbytes // 4) * 4  # which buffers have, and copies need
        with self._submitted() as encoder:
            webgpu.wgpuCommandEncoderCopyBufferToBuffer(encoder, of, 0, to, 0, size)

    @contextmanager
    def _submitted(self) -> Iterator[Any]:
        """What is encoded inside is submitted."""
        device = self._device
        with _checked(device):
            how = webgpu.WGPUCommandEncoderDescriptor()
            encoder = webgpu.wgpuDeviceCreateCommandEncoder(device.device_res, how)
            yield encoder
            whole = webgpu.WGPUCommandBufferDescriptor()
            commands = webgpu.wgpuCommandEncoderFinish(encoder, whole)
            webgpu.wgpuQueueSubmit(device.queue, 1, (webgpu.WGPUCommandBuffer * 1)(commands))
        webgpu.wgpuCommandEncoderRelease(encoder)
        webgpu.wgpuCommandBufferRelease(commands)

    def _group(self, pipeline: Pipeline, buffers: Sequence[Any]) -> Any:
        size, all_ = webgpu.wgpuBufferGetSize, (self._infinity, *buffers)
        each = (
            webgpu.WGPUBindGroupEntry(binding=i, buffer=buffer, offset=0, size=size(buffer))
            for i, buffer in enumerate(all_)
        )
        entries = (webgpu.WGPUBindGroupEntry * len(all_))(*each)
        group = webgpu.WGPUBindGroupDescriptor(
            layout=pipeline.layout, entryCount=len(all_), entries=entries
        )
        return webgpu.wgpuDeviceCreateBindGroup(self._device.device_res, group)


_LARGE = 1 << 20  # bytes; to ask whether it worked takes as long as a small kernel


def allocate(device: Any, nbytes: int, most: int) -> Any:
    """A buffer of at most `most` bytes; Dawn would return one that cannot be used."""
    if nbytes > most:
        raise MemoryError(f"a buffer of WebGPU has at most {most} bytes here")
    if nbytes < _LARGE:
        return device.allocator.alloc(nbytes)
    webgpu.wgpuDevicePushErrorScope(device.device_res, webgpu.WGPUErrorFilter_OutOfMemory)
    memory = device.allocator.alloc(nbytes)
    if error := device.pop_error():
        device.free(memory)
        raise MemoryError(error)
    return memory


def most_buffers(device: Any) -> int:
    """How many storage buffers a kernel may have."""
    return int(_limits(device).maxStorageBuffersPerShaderStage)


def most_bytes(device: Any) -> int:
    """How large a storage buffer may be."""
    limits = _limits(device)
    return min(int(limits.maxBufferSize), int(limits.maxStorageBufferBindingSize))


def _limits(device: Any) -> Any:
    supported = webgpu.WGPUSupportedLimits()
    webgpu.wgpuDeviceGetLimits(device.device_res, supported)
    return supported.limits


@contextmanager
def _checked(device: Any) -> Iterator[None]:
    """Raises what the device finds wrong inside."""
    webgpu.wgpuDevicePushErrorScope(device.device_res, webgpu.WGPUErrorFilter_Validation)
    try:
        yield
    except BaseException:
        device.pop_error()
        raise
    if error := device.pop_error():
        raise RuntimeError(f"WebGPU: {error}")


def _entry(number: int, kind: str) -> Any:
    layout = webgpu.WGPUBufferBindingLayout(type=getattr(webgpu, f"WGPUBufferBindingType_{kind}"))
    return webgpu.WGPUBindGroupLayoutEntry(
        binding=number, visibility=webgpu.WGPUShaderStage_Compute, buffer=layout
    )
