"""`torch.tiny`: devices, streams, memory, random numbers and what the device has done.

The names and their meaning are those of `torch.cuda`. Wherever a `device` can be given it is an
index, "tiny:1", a torch.device, or None for the current device.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Event, Stream
from torch.types import Device

from torch_tiny import _C

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_name",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_portable",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "metrics",
    "reset_accumulated_memory_stats",
    "reset_metrics",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

default_generators: tuple[torch.Generator, ...]

# torch.utils.checkpoint keeps a device's random state only where this is true.
_initialized = True


class DeviceProperties(NamedTuple):
    """What is known of one tiny device."""

    name: str
    total_memory: int
    multi_processor_count: int


# Devices


def is_available() -> bool:
    """Whether there is a tiny device; there always is once torch_tiny is imported."""
    return _C.device_count() > 0


def is_initialized() -> bool:
    """True: there is nothing left to initialize."""
    return True


def device_count() -> int:
    """The number of tiny devices: the entries of TORCH_TINY_DEVICES."""
    return _C.device_count()


def current_device() -> int:
    """The index of the device that "tiny" stands for in this thread."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make `device` the one that "tiny" stands for in this thread."""
    _C.set_device(_index(device))


class device:  # noqa: N801  (torch.cuda.device)
    """Context manager that makes `device` the current one; -1 changes nothing."""

    def __init__(self, device: Device) -> None:
        self.index = -1 if device == -1 else _index(device)
        self.previous = -1

    def __enter__(self) -> None:
        if self.index >= 0:
            self.previous = _C.exchange_device(self.index)

    def __exit__(self, *_: object) -> None:
        if self.index >= 0:
            _C.set_device(self.previous)


class device_of(device):  # noqa: N801  (torch.cuda.device_of)
    """Context manager that makes the device of `tensor` current, if that is a tiny device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device.index if tensor.device.type == "tiny" else -1)


def device_name(device: Device = None) -> str:
    """The memory that `device` lives in: "cpu", "cuda:0", or a portable kind such as "webgpu"."""
    return _C.device_host(_index(device))


get_device_name = device_name


def is_portable(device: Device = None) -> bool:
    """Whether `device` is one that only tinygrad drives, such as "webgpu"."""
    return _C.is_portable(_index(device))


def get_device_properties(device: Device = None) -> DeviceProperties:
    """The name of the memory, its size in bytes, and the number of processors on it.

    Portable devices do not tell their size: it is 0.
    """
    if is_portable(device):
        return DeviceProperties(device_name(device), 0, 1)
    host = torch.device(device_name(device))
    if host.type == "cuda":
        gpu = torch.cuda.get_device_properties(host)
        return DeviceProperties(gpu.name, gpu.total_memory, gpu.multi_processor_count)
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name = f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    return DeviceProperties(name, size, os.cpu_count() or 1)


def synchronize(device: Device = None) -> None:
    """Run everything recorded on `device` and wait until it is done."""
    _C.synchronize(_index(device))


# Streams. `Stream` and `Event` are torch's own; without a device they belong to this one.


def current_stream(device: Device = None) -> Stream:
    """The stream that work on `device` goes to."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> Stream:
    """The stream that `device` starts with."""
    tiny = torch._C._autograd.DeviceType.PrivateUse1.value
    return Stream(stream_id=0, device_index=_index(device), device_type=tiny)


def set_stream(stream: Stream) -> None:
    """Make `stream` the current one of its device, and that device the current one."""
    torch.accelerator.set_stream(stream)


def stream(stream: Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Context manager that makes `stream` current; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


# Memory


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors on `device` occupy now."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors on `device` occupied since `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Device = None) -> int:
    """Bytes held on `device`: those of tensors and those kept for the next ones."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes held on `device` since `reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def memory_stats(device: Device = None) -> dict[str, int]:
    """The allocator's counts by the names of `torch.cuda.memory_stats`."""
    stats = _C.memory_stats(_index(device))
    return {name.replace(".", ".all."): count for name, count in sorted(stats.items())}


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peaks of `device` over from what is in use now."""
    _C.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the totals of `device` (bytes and blocks ever allocated and freed) over from zero."""
    _C.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Give back the memory that is kept for the next tensors, on all devices."""
    _C.empty_cache()


# Random numbers


def manual_seed(seed: int) -> None:
    """Seed the current device. `torch.manual_seed` seeds all devices of every kind."""
    _C.default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all tiny devices."""
    for generator in _default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a number of its own choice."""
    _C.default_generator(current_device()).seed()


def seed_all() -> None:
    """Seed all tiny devices with one number of their own choice."""
    manual_seed_all(_C.default_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device."""
    return _C.default_generator(current_device()).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of the random numbers of `device`, as a ByteTensor on the CPU."""
    return _C.default_generator(_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of each tiny device."""
    return [generator.get_state() for generator in _default_generators()]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Set what `get_rng_state` gave."""
    _C.default_generator(_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set what `get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Autocast


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that `torch.autocast("tiny", dtype)` takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Whether the current device computes in bfloat16."""
    if is_portable():
        return True
    host = torch.device(device_name())
    return host.type == "cpu" or torch.cuda.is_bf16_supported()


# What happened


def metrics() -> "_C.Metrics":
    """Counts since the start: calls, traces and their causes, plans, seconds. See `report`."""
    return _C.metrics()


def reset_metrics() -> None:
    """Start all counts over."""
    _C.reset_metrics()


# What only torch asks for


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def _default_generators() -> tuple[torch.Generator, ...]:
    return tuple(_C.default_generator(index) for index in range(device_count()))


def __getattr__(name: str) -> tuple[torch.Generator, ...]:
    if name == "default_generators":
        return _default_generators()
    raise AttributeError(f"module 'torch.tiny' has no attribute {name!r}")


def _index(device: Device) -> int:
    """The index that `device` means, if there is such a device."""
    if device is None:
        return _C.current_device()
    given = torch.device("tiny", device) if isinstance(device, int) else torch.device(device)
    if given.type != "tiny":
        raise ValueError(f"expected a tiny device, not {given}")
    if given.index is None:
        return _C.current_device()
    _C.device_host(given.index)  # raises where there is none
    return given.index
