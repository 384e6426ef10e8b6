"""tinygrad's tensors and buffers: their memory, and tensors over memory of others."""

import ctypes
from typing import cast
from weakref import WeakKeyDictionary

from tinygrad.device import Buffer, BufferSpec, Device
from tinygrad.tensor import Tensor

from torch_tiny.uops import DType, Ops, UOp

__all__ = ["host_address", "realized_base", "tensor_of", "uop_over_host", "why_not_open"]


def realized_base(tensor: Tensor) -> tuple[UOp, Buffer]:
    """A tensor as movement ops of memory that has been computed, and that memory."""
    if tensor.uop.base.op is not Ops.BUFFER:
        tensor.realize()
    uop: UOp = tensor.uop
    if uop.base.op is not Ops.BUFFER:
        raise ValueError("this tinygrad tensor has no memory of its own (a constant, or sharded)")
    return uop, cast(Buffer, uop.base.buffer).ensure_allocated()


def host_address(buffer: Buffer) -> int | None:
    """Where a buffer lies in this process's memory; None if it does not."""
    if buffer.device.split(":")[0] not in ("CPU", "PYTHON", "NPY"):
        return None
    Device[buffer.device].synchronize()  # type: ignore[no-untyped-call]
    return _address(buffer.as_memoryview(allow_zero_copy=True)) if buffer.nbytes else 0


def uop_over_host(device: str, dtype: DType, count: int, memory: memoryview) -> UOp:
    """A flat buffer over memory of the host, which lives as long as the buffer does."""
    if device == "PYTHON":
        buffer = Buffer(device, count, dtype, opaque=memory)
    else:
        where = BufferSpec(external_ptr=_address(memory) if count else 0)
        buffer = Buffer(device, count, dtype, options=where, preallocate=True)
    _kept[buffer] = memory
    uop: UOp = UOp.from_buffer(buffer)
    return uop


_kept: WeakKeyDictionary[Buffer, memoryview] = WeakKeyDictionary()


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def tensor_of(uop: UOp) -> Tensor:
    return Tensor(uop)


def why_not_open(device: str) -> str | None:
    """Why tinygrad cannot use a device here; None if it can."""
    try:
        Device[device]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
