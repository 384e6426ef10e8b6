"""Tensors of tinygrad as tiny tensors and back, over the same memory."""

import ctypes
import functools
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor as TinygradTensor


def from_tinygrad(tensor: "TinygradTensor") -> torch.Tensor:
    """A tiny tensor over the memory of a tinygrad tensor. Nothing is copied.

    A tensor that is still to be computed is computed first. Reshapes, permutations, slices and
    broadcasts become strides; what is none of these, such as a flip, has to be made `contiguous()`
    by the caller. What one side writes the other sees once it has run: after `realize()` there,
    and after `torch.tiny.synchronize()` here.
    """
    from torch_tiny import _C
    from torch_tiny.lower.tools import DTYPES
    from torch_tiny.uops.tensors import host_address, realized_base
    from torch_tiny.views import from_movement

    uop, buffer = realized_base(tensor)
    spec = from_movement(uop)
    dtype = next((ours for ours, theirs in DTYPES.items() if theirs == uop.dtype), None)
    if spec is None:
        raise ValueError(
            "this tinygrad tensor is no strided view of its memory (it is padded, flipped, or a "
            "reshape that needs a copy); give from_tinygrad(tensor.contiguous().realize())"
        )
    if dtype is None:
        raise ValueError(f"PyTorch's tiny device has no {uop.dtype}")
    address = host_address(buffer)
    if address is None:
        raise ValueError(
            f"memory of tinygrad's device {buffer.device} cannot be shared with a tiny device; "
            'move the tensor with tensor.to("CPU") first'
        )
    memory = (ctypes.c_uint8 * buffer.nbytes).from_address(address)
    memory.kept = buffer  # freed with the last tensor over it
    host = torch.frombuffer(memory, dtype=dtype) if buffer.nbytes else torch.empty(0, dtype=dtype)
    return _C.adopt(host, _cpu_device()).as_strided(spec.shape, spec.strides, spec.offset)


def to_tinygrad(tensor: torch.Tensor) -> "TinygradTensor":
    """A tinygrad tensor over the memory of a tiny tensor. Nothing is copied.

    What was recorded runs first. It lives on tinygrad's device CPU, or where that needs a compiler
    that is not here on its device PYTHON, which computes slowly: `.to()` moves it to another one.
    What one side writes the other side sees once it has run, as with `from_tinygrad`. Elements that
    overlap (as_strided, unfold) can be read by tinygrad, not written.
    """
    from torch_tiny import _C
    from torch_tiny.lower.tools import DTYPES
    from torch_tiny.uops.tensors import tensor_of, uop_over_host
    from torch_tiny.views import ViewSpec, read

    if tensor.device.type != "tiny":
        raise ValueError(f"expected a tensor on device 'tiny', got {tensor.device}")
    if _C.device_host(tensor.device.index) != "cpu":
        raise ValueError(
            f"memory of {tensor.device} ({_C.device_host(tensor.device.index)}) cannot be shared "
            "with tinygrad; give a tensor in cpu memory"
        )
    if tensor.requires_grad:
        raise ValueError("tinygrad does not take part in autograd; give tensor.detach()")
    if tensor.dtype not in DTYPES or tensor.is_neg():
        raise ValueError(f"tinygrad has no {tensor.dtype} tensors like this one")
    spec = ViewSpec(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    host = _C.host_memory(tensor)
    count = host.untyped_storage().nbytes() // tensor.dtype.itemsize
    whole = torch.empty(0, dtype=torch.uint8).set_(
        host.untyped_storage(), 0, (count * tensor.dtype.itemsize,), (1,)
    )
    device = _tinygrad_device()
    flat = uop_over_host(device, DTYPES[tensor.dtype], count, memoryview(whole.numpy().data))
    return tensor_of(read(flat, spec))


def _cpu_device() -> int:
    from torch_tiny import _C

    for index in range(_C.device_count()):
        if _C.device_host(index) == "cpu":
            return index
    raise ValueError("there is no tiny device in cpu memory; name one in TORCH_TINY_DEVICES")


@functools.cache
def _tinygrad_device() -> str:
    from torch_tiny.uops.tensors import why_not_open

    why = why_not_open("CPU")
    if why is None:
        return "CPU"
    warnings.warn(
        f"tinygrad's device CPU does not open ({why}), so tensors are given to its device PYTHON, "
        "which is slow at computing; move them with .to()",
        stacklevel=3,
    )
    return "PYTHON"
