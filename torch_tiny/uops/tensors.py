"""tinygrad's tensors and buffers: their memory, and tensors over memory of others."""

import ctypes
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from tinygrad.device import Buffer, BufferSpec, Device
from tinygrad.tensor import Tensor

from torch_tiny.uops import DType, Ops, UOp, dtypes


def realized_base(tensor: Tensor) -> tuple[UOp, Buffer]:
    """A tensor as movement ops of memory that has been computed, and that memory."""
    if tensor.uop.base.op is not Ops.BUFFER:
        tensor.realize()
    uop: UOp = tensor.uop
    if uop.base.op is not Ops.BUFFER:
        raise ValueError("this tinygrad tensor has no memory of its own (a constant, or sharded)")
    return uop, cast(Buffer, uop.base.buffer).ensure_allocated()


ON_HOST = ("CPU", "PYTHON", "NPY")
"""Devices whose memory is this process's."""


def host_address(buffer: Buffer) -> int:
    """Where a buffer of a device on the host lies."""
    Device[buffer.device].synchronize()  # type: ignore[no-untyped-call]
    address = _address(buffer.as_memoryview(allow_zero_copy=True))
    _on_host[address, buffer.dtype, buffer.size] = buffer
    return address


def uop_over_host(device: str, dtype: DType, count: int, memory: memoryview) -> UOp:
    """A flat buffer over memory of the host, which lives as long as the buffer does.

    The same one each time: in tinygrad's eyes two buffers have nothing to do with each other.
    """
    address = _address(memory)
    buffer = _on_host.get((address, dtype, count))
    if buffer is None:
        if device == "PYTHON":
            buffer = Buffer(device, count, dtype, opaque=memory)
        else:
            where = BufferSpec(external_ptr=address)
            buffer = Buffer(device, count, dtype, options=where, preallocate=True)
        _kept[buffer] = memory
        _on_host[address, dtype, count] = buffer
    return uop_of(buffer)


_kept: WeakKeyDictionary[Buffer, memoryview] = WeakKeyDictionary()
_on_host: WeakValueDictionary[tuple[int, DType, int], Buffer] = WeakValueDictionary()


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Lent(Buffer):
    """All of the memory of another buffer, in a type of its own. It frees nothing itself."""

    def __init__(self, owner: Buffer, count: int, dtype: DType) -> None:
        outside = BufferSpec(external_ptr=0)  # or it would be counted twice
        super().__init__(owner.device, count, dtype, opaque=opaque(owner), options=outside)
        self.owner = owner

    def deallocate(self) -> None:
        self._bufs.clear()


def owning(device: str, memory: Any, nbytes: int) -> Buffer:
    """A buffer that frees this memory, which tinygrad's allocator has made."""
    return Buffer(device, nbytes, dtypes.uint8, opaque=memory)


def owner_of(buffer: Buffer) -> tuple[Buffer, int]:
    """The buffer that frees the memory of this one, and where in it this one begins, in bytes."""
    base = buffer.base
    return base.owner if isinstance(base, Lent) else base, buffer.offset


def opaque(buffer: Buffer) -> Any:
    """What tinygrad's runtime knows the memory by."""
    return buffer.ensure_allocated()._buf


def uop_of(buffer: Buffer) -> UOp:
    return cast(UOp, UOp.from_buffer(buffer))


def tensor_of(uop: UOp) -> Tensor:
    return Tensor(uop)


def empty(device: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A tensor without elements."""
    return Tensor.empty(*shape, device=device, dtype=dtype)


def why_not_open(device: str) -> str | None:
    """Why tinygrad cannot use a device here; None if it can."""
    try:
        Device[device]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
