"""Tensors of tinygrad as tiny tensors and back, over the same memory."""

import ctypes
import functools
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tinygrad.device import Buffer
    from tinygrad.tensor import Tensor as TinygradTensor

    from torch_tiny.portable.service import Engine
    from torch_tiny.uops import UOp


def from_tinygrad(tensor: "TinygradTensor") -> torch.Tensor:
    """A tiny tensor over the memory of a tinygrad tensor. Nothing is copied.

    A tensor that is still to be computed is computed first. Reshapes, permutations, slices and
    broadcasts become strides; what is none of these, such as a flip, has to be made `contiguous()`
    by the caller. What one side writes the other sees once it has run: after `realize()` there,
    and after `torch.tiny.synchronize()` here. The same goes for reads: what was recorded here reads
    the memory when it runs, so synchronize before tinygrad writes what is still to be read.
    """
    from torch_tiny.lower.shapes import DTYPES
    from torch_tiny.uops.tensors import owner_of, realized_base
    from torch_tiny.views import from_movement

    dtype = next((ours for ours, theirs in DTYPES.items() if theirs == tensor.dtype), None)
    if dtype is None:
        raise ValueError(f"PyTorch's tiny device has no {tensor.dtype}")
    if 0 in tensor.shape:
        shape = tuple(int(n) for n in tensor.shape)
        return torch.empty(shape, dtype=dtype, device=_device_of(str(tensor.device)))
    uop, buffer = realized_base(tensor)
    spec = from_movement(uop)
    if spec is None:
        raise ValueError(
            "this tinygrad tensor is no strided view of its memory (it is padded, flipped, or a "
            "reshape that needs a copy); give from_tinygrad(tensor.contiguous().realize())"
        )
    owner, begin = owner_of(buffer)
    if begin % dtype.itemsize:
        raise ValueError(
            f"PyTorch has no {dtype} tensor that begins {begin} bytes into its memory; give "
            "from_tinygrad(tensor.clone().realize())"
        )
    flat = _flat(owner, dtype)
    return flat.as_strided(spec.shape, spec.strides, spec.offset + begin // dtype.itemsize)


def to_tinygrad(tensor: torch.Tensor) -> "TinygradTensor":
    """A tinygrad tensor over the memory of a tiny tensor. Nothing is copied.

    What was recorded runs first. It lives on the device of tinygrad's that the memory is of; for
    cpu memory that is CPU, or where that needs a compiler that is not here PYTHON, which computes
    slowly: `.to()` moves it to another one. What one side writes the other side sees once it has
    run, as with `from_tinygrad`. Elements that overlap (as_strided, unfold) can be read by
    tinygrad, not written.
    """
    from torch_tiny import _C
    from torch_tiny.lower.shapes import DTYPES
    from torch_tiny.uops.tensors import empty, tensor_of
    from torch_tiny.views import ViewSpec, read

    if tensor.device.type != "tiny":
        raise ValueError(f"expected a tensor on device 'tiny', got {tensor.device}")
    if tensor.requires_grad:
        raise ValueError("tinygrad does not take part in autograd; give tensor.detach()")
    if tensor.dtype not in DTYPES or tensor.is_neg():
        raise ValueError(f"tinygrad has no {tensor.dtype} tensors like this one")
    host = _C.device_host(tensor.device.index)
    if host.startswith("cuda"):
        raise ValueError(
            f"memory of {tensor.device} ({host}) cannot be shared with tinygrad, whose CUDA device "
            "has a context of its own that PyTorch's memory does not exist in; give tensor.cpu()"
        )
    if tensor.numel() == 0:
        return empty(_tinygrad_name(host), DTYPES[tensor.dtype], tuple(tensor.shape))
    flat = _over_host(tensor) if host == "cpu" else _over_device(tensor)
    spec = ViewSpec(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    return tensor_of(read(flat, spec))


# --- memory of tinygrad's, for PyTorch ---


def _flat(owner: "Buffer", dtype: torch.dtype) -> torch.Tensor:
    """All of the memory of a buffer."""
    from torch_tiny import _C
    from torch_tiny.uops.tensors import host_address

    device = _device_of(owner.device)
    if _C.is_portable(device.index):
        return _engine().adopt(owner, dtype)
    address = host_address(owner)
    known: torch.Tensor | None = _C.shared_tensor(device.index, address, dtype)
    if known is not None:
        return known
    memory = (ctypes.c_uint8 * owner.nbytes).from_address(address)
    memory.kept = owner  # freed with the last tensor over it
    size = owner.nbytes // dtype.itemsize * dtype.itemsize
    host = torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype)
    return _C.adopt_shared(host, device.index)


def _device_of(name: str) -> torch.device:
    """The first tiny device over memory of a device of tinygrad's."""
    from torch_tiny import _C

    present = [_C.device_host(index) for index in range(_C.device_count())]
    kind = _kind_of(name)
    if kind in present:
        return torch.device("tiny", present.index(kind))
    raise ValueError(
        f"no tiny device of this process is tinygrad's device {name}: set TORCH_TINY_DEVICES="
        f"{','.join([*present, kind])} before the program starts, or move the tensor with to()"
    )


def _kind_of(name: str) -> str:
    """What TORCH_TINY_DEVICES calls a device of tinygrad's."""
    from torch_tiny import hosts
    from torch_tiny.portable.kind import find_kind
    from torch_tiny.uops.tensors import ON_HOST

    base, _, index = name.partition(":")
    if base in ON_HOST:
        return "cpu"
    kinds = {find_kind(kind).device: kind for kind in hosts.portable_kinds()}
    if base not in kinds:
        raise ValueError(
            f"memory of tinygrad's device {name} cannot be shared with a tiny device; move the "
            f"tensor with to() first: to CPU, or to {', '.join(sorted(kinds))} where tiny is that"
        )
    return f"{kinds[base]}:{index}" if index else kinds[base]


# --- memory of PyTorch's, for tinygrad ---


def _over_device(tensor: torch.Tensor) -> "UOp":
    """All of the buffer of a tensor on a portable device."""
    from torch_tiny.lower.shapes import DTYPES
    from torch_tiny.uops.tensors import uop_of

    return uop_of(_engine().lend(tensor, DTYPES[tensor.dtype]))


def _engine() -> "Engine":
    """Of portable devices, where there is one."""
    from torch_tiny.portable import service

    assert service.engine is not None
    return service.engine


def _over_host(tensor: torch.Tensor) -> "UOp":
    from torch_tiny import _C
    from torch_tiny.lower.shapes import DTYPES
    from torch_tiny.uops.tensors import uop_over_host

    host = _C.host_memory(tensor)
    count = host.untyped_storage().nbytes() // tensor.dtype.itemsize
    whole = torch.empty(0, dtype=torch.uint8).set_(
        host.untyped_storage(), 0, (count * tensor.dtype.itemsize,), (1,)
    )
    device = _tinygrad_name("cpu")
    return uop_over_host(device, DTYPES[tensor.dtype], count, memoryview(whole.numpy().data))


@functools.cache
def _tinygrad_name(host: str) -> str:
    """What tinygrad calls memory that TORCH_TINY_DEVICES calls `host`."""
    from torch_tiny.portable.kind import find_kind
    from torch_tiny.uops.tensors import why_not_open

    if host != "cpu":
        kind, _, index = host.partition(":")
        return find_kind(kind).tinygrad_name(int(index or 0))
    why = why_not_open("CPU")
    if why is None:
        return "CPU"
    warnings.warn(
        f"tinygrad's device CPU does not open ({why}), so tensors are given to its device PYTHON, "
        "which is slow at computing; move them with .to()",
        stacklevel=3,
    )
    return "PYTHON"
