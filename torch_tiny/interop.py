"""What leaves PyTorch's dispatcher: NumPy, DLPack, addresses, memory shared between processes.

PyTorch answers these from the tensor's pointer without asking the device, so they are patched here.
A tensor of another device, and one with `__torch_function__`, takes PyTorch's own path at once.
"""

import functools
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import reduce_storage
from torch.overrides import has_torch_function_unary

from torch_tiny import _C

T = TypeVar("T")


def install() -> None:
    """Patch torch once."""
    _patch(Tensor, "numpy", _numpy)
    _patch(Tensor, "__dlpack__", _as_host)
    _patch(Tensor, "__dlpack_device__", _as_host)
    for module in (torch, torch.utils.dlpack):
        _patch(module, "to_dlpack", _as_host)
    _patch(torch._tensor_str, "_tensor_str", _printed)
    _patch_tensor("data_ptr")
    _patch_tensor("untyped_storage")
    _patch_storage_address()
    _patch_storage("_write_file", _write_file)
    _patch_storage("_set_from_file", _set_from_file)
    for name in ("clone", "fill_"):
        _patch_storage(name, _alone)
    _patch_storage("is_shared", _is_shared)
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
        _patch_storage(name, _refuse_to_share)
    for name in ("to", "tiny"):
        _patch_storage_move(name)
    ForkingPickler.register(UntypedStorage, _reduce_storage)
    for owner, name in ((torch.library.Library, "_destroy"), (torch.library, "_del_library")):
        _run_before(owner, name, "an operator was deregistered")
    # Else a run would have to set the old one, for all threads, while it lasts.
    for name in ("_set_default_dtype", "_set_default_tensor_type"):
        _set_between_runs(torch._C, name)
    # There are no nested tensors here: nn.TransformerEncoder masks what it would have left out.
    _operators.impl("_nested_tensor_from_mask_left_aligned", lambda *_: False, "PrivateUse1")


_operators = torch.library.Library("aten", "IMPL")


def _run_before(owner: Any, name: str, reason: str) -> None:
    """What was recorded calls operators that are about to go."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        _C.run_everything(reason)
        return original(*args, **kwargs)

    setattr(owner, name, patched)


_TRIES = 20  # until other threads leave a moment in which nothing is recorded or runs


def _set_between_runs(owner: Any, name: str) -> None:
    """What was recorded asks for the old default type. Given is a type, or a class of tensors."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(kind: Any) -> None:
        before, dtype = torch.get_default_dtype(), getattr(kind, "dtype", kind)
        is_one = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        for _ in range(_TRIES if is_one else 0):
            _C.run_everything("the default type was set")
            if _C.set_default_type_while_idle(dtype):
                break
        try:
            original(kind)
        except BaseException:
            dtype = before
            raise
        finally:
            _C.default_type_was_set(dtype)

    setattr(owner, name, patched)


def _patch(owner: Any, name: str, tiny: Callable[..., Any]) -> None:
    """Make `tiny` answer for tiny tensors, and what `owner.name` was for all others."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _not_ours(tensor):
            return original(tensor, *args, **kwargs)
        return tiny(original, tensor, *args, **kwargs)

    setattr(owner, name, patched)


def _numpy(original: Callable[..., T], tensor: Tensor, *args: Any, **kwargs: Any) -> T:
    """Zero-copy where NumPy can see the memory, else PyTorch's usual TypeError."""
    if _C.device_host(tensor.device.index) != "cpu":  # also on portable devices: it is a copy
        return original(tensor, *args, **kwargs)
    return original(_host_twin(tensor), *args, **kwargs)


def _as_host(original: Callable[..., T], tensor: Tensor, *args: Any, **kwargs: Any) -> T:
    """DLPack: a tiny tensor is a tensor of the memory that it lives in."""
    return original(_host_twin(tensor), *args, **kwargs)


def _printed(original: Callable[..., T], tensor: Tensor, *args: Any) -> T:
    """PyTorch formats numbers in float64, which not every portable device has."""
    return original(tensor.cpu() if _C.is_portable(tensor.device.index) else tensor, *args)


# Addresses and storages are asked for in tight loops: no *args, and the cheapest test first.


def _patch_tensor(name: str) -> None:
    """Compute the tensor before PyTorch looks at its memory or hands out its storage."""
    original = getattr(Tensor, name)

    @functools.wraps(original)
    def patched(tensor: Tensor) -> Any:
        if not (has_torch_function_unary(tensor) or tensor.is_cpu or _not_ours(tensor)):
            _C.materialize(tensor)
        return original(tensor)

    setattr(Tensor, name, patched)


def _patch_storage_address() -> None:
    original = UntypedStorage.data_ptr
    cpu = torch.device("cpu")

    @functools.wraps(original)
    def data_ptr(storage: UntypedStorage) -> int:
        if storage.device != cpu and storage.device.type == "tiny":
            _C.materialize(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        return original(storage)

    UntypedStorage.data_ptr = data_ptr  # type: ignore[assignment, method-assign]


def _patch_storage(name: str, tiny: Callable[..., Any]) -> None:
    """Make `tiny` answer for tiny storages, and what `UntypedStorage.name` was for all others."""
    original = getattr(UntypedStorage, name)

    @functools.wraps(original)
    def patched(storage: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type != "tiny":
            return original(storage, *args, **kwargs)
        return tiny(original, storage, *args, **kwargs)

    setattr(UntypedStorage, name, patched)


def _patch_storage_move(name: str) -> None:
    """A storage of a file keeps its size here too: a tensor larger than it must not grow it."""
    original = getattr(UntypedStorage, name)

    @functools.wraps(original)
    def moved(storage: UntypedStorage, *args: Any, **kwargs: Any) -> UntypedStorage:
        result: UntypedStorage = original(storage, *args, **kwargs)
        if result is not storage and result.device.type == "tiny" and not storage.resizable():
            _C.fix_size(result)
        return result

    setattr(UntypedStorage, name, moved)


# Pickle and the old format of torch.save go through files; PyTorch would use the bare pointer.


def _write_file(original: Callable[..., T], storage: UntypedStorage, *args: Any) -> T:
    return original(storage.cpu(), *args)


def _set_from_file(
    original: Callable[..., Any], storage: UntypedStorage, *args: Any
) -> UntypedStorage:
    host = UntypedStorage(storage.nbytes())
    original(host, *args)
    return storage.copy_(host)


def _alone(original: Callable[..., T], storage: UntypedStorage, *args: Any) -> T:
    """Of bytes, which is a trace of its own: one trace sees memory as one type on some devices."""
    storage.data_ptr()  # PyTorch refuses a storage that has no memory yet
    index = storage.device.index
    _C.run(index, "a storage's bytes")
    result = original(storage, *args)
    _C.run(index, "a storage's bytes")
    return result


def _is_shared(_: object, _storage: UntypedStorage) -> bool:
    return False


def _refuse_to_share(_: object, storage: UntypedStorage, *_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError(_not_shared(storage))


def _reduce_storage(storage: UntypedStorage) -> Any:
    """What a queue sends to another process, a data loader's worker to its program.

    The thread of a queue prints errors and leaves its reader waiting: there the error is sent.
    """
    if storage.device.type == "tiny" and threading.current_thread().name == "QueueFeederThread":
        return _raise_here, (_not_shared(storage),)
    return reduce_storage(storage)


def _raise_here(message: str) -> None:
    raise RuntimeError(message)


def _not_shared(storage: UntypedStorage) -> str:
    return (
        f"memory of {storage.device} cannot be shared between processes: "
        'send tensor.cpu() instead, and call .to("tiny") where it arrives'
    )


def _not_ours(tensor: Tensor) -> bool:
    """Whether PyTorch's own answer is right."""
    return has_torch_function_unary(tensor) or tensor.is_cpu or not _C.has_memory(tensor)


def _host_twin(tensor: Tensor) -> Tensor:
    """A CPU or CUDA tensor over the same memory that fails to be exported where `tensor` would."""
    twin = _C.host_alias(tensor)
    return twin.requires_grad_() if tensor.requires_grad else twin
