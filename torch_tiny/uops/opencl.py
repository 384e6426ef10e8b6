"""Building OpenCL C without tinygrad's cache of pickles; PoCL and drivers have their own."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from tinygrad.helpers import to_char_p_p
from tinygrad.runtime.autogen import opencl
from tinygrad.runtime.ops_cl import BP_CB

OPTIONS = "-w"  # warnings would go to the user's terminal
_ROUNDED = "-cl-fp32-correctly-rounded-divide-sqrt"


def build(
    device: Any, texts: Sequence[tuple[str, str]], head: str = "", option: str = ""
) -> list["Kernel"]:
    """One program of several kernels, each of which is a name and a text of its own.

    head: what stands before them; option: for the device's compiler.
    """
    names = [f"{name}_{i}" for i, (name, _) in enumerate(texts)]
    parts = (
        text.replace(f"void {name}(", f"void {new}(", 1)
        for new, (name, text) in zip(names, texts, strict=True)
    )
    status = ctypes.c_int32()
    program = opencl.clCreateProgramWithSource(
        device.context, 1, to_char_p_p(["\n".join((head, *parts)).encode()]), None, status
    )
    _check(status.value)
    options = ctypes.create_string_buffer(f"{OPTIONS} {option}".encode())
    if opencl.clBuildProgram(program, 1, device.cl_dev, options, BP_CB(), None):
        raise RuntimeError(f"OpenCL: {_log(device, program)}")
    kernels = [Kernel(device, program, name) for name in names]
    opencl.clReleaseProgram(program)  # which lives as long as its kernels
    return kernels


def rounding(device: Any) -> str:
    """The option by which quotients and roots are the nearest numbers, where the device has it."""
    config = ctypes.c_uint64()
    which = opencl.CL_DEVICE_SINGLE_FP_CONFIG
    opencl.clGetDeviceInfo(device.cl_dev, which, ctypes.sizeof(config), ctypes.byref(config), None)
    return _ROUNDED if config.value & opencl.CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT else ""


def version(device: Any) -> str:
    """What the driver says of itself."""
    text = ctypes.create_string_buffer(256)
    opencl.clGetDeviceInfo(device.cl_dev, opencl.CL_DEVICE_VERSION, len(text), text, None)
    return text.value.decode(errors="replace")


class Kernel:
    """A kernel of OpenCL C on a device of tinygrad's."""

    def __init__(self, device: Any, program: Any, name: str) -> None:
        self._device = device
        status = ctypes.c_int32()
        self._kernel = opencl.clCreateKernel(program, name.encode(), status)
        _check(status.value)

    def __del__(self) -> None:
        # A process that ends, or one that was forked and ends, leaves the driver alone.
        if not sys.is_finalizing():
            opencl.clReleaseKernel(self._kernel)

    def __call__(self, buffers: Any, launch: Any, group: Any) -> None:
        kernel, queue, count = self._kernel, self._device.queue, len(group)
        for i, buffer in enumerate(buffers):
            _check(opencl.clSetKernelArg(kernel, i, ctypes.sizeof(buffer), ctypes.byref(buffer)))
        sizes = [n * m for n, m in zip(launch, group, strict=True)]
        how = ((ctypes.c_size_t * count)(*numbers) for numbers in (sizes, group))
        _check(opencl.clEnqueueNDRangeKernel(queue, kernel, count, None, *how, 0, None, None))


def copy(device: Any, to: Any, of: Any, nbytes: int) -> None:
    """From buffer to buffer, after what was enqueued before."""
    _check(opencl.clEnqueueCopyBuffer(device.queue, of, to, 0, 0, nbytes, 0, None, None))


# What a driver says when it notices only now that there is no memory.
_NO_MEMORY = (
    opencl.CL_MEM_OBJECT_ALLOCATION_FAILURE,
    opencl.CL_OUT_OF_RESOURCES,
    opencl.CL_OUT_OF_HOST_MEMORY,
)


def _check(status: int) -> None:
    if status in _NO_MEMORY:
        raise MemoryError(f"OpenCL error {status}")
    if status:
        raise RuntimeError(f"OpenCL error {status}")


def _log(device: Any, program: Any) -> str:
    size = ctypes.c_size_t()
    which = opencl.CL_PROGRAM_BUILD_LOG
    opencl.clGetProgramBuildInfo(program, device.cl_dev, which, 0, None, size)
    text = ctypes.create_string_buffer(size.value)
    opencl.clGetProgramBuildInfo(program, device.cl_dev, which, size.value, text, None)
    return text.value.decode(errors="replace")
