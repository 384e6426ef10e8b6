"""Buffers of a portable device by number, as the core knows them."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch_tiny.portable.kind import Opened

if TYPE_CHECKING:
    from tinygrad.device import Buffer

    from torch_tiny.uops import DType

_numbers = itertools.count(1)


@dataclass
class _Held:
    memory: Any
    nbytes: int
    owner: "Buffer | None" = None
    """tinygrad's, which frees the memory when neither side needs it any more."""
    is_adopted: bool = False
    lent: "WeakSet[Buffer]" = field(default_factory=WeakSet)
    """What tinygrad has of it, unless all of it was tinygrad's from the first."""


class DeviceMemoryError(MemoryError):
    """The core raises it as torch.OutOfMemoryError."""

    def __init__(self, message: str, nbytes: int) -> None:
        super().__init__(message)
        self.nbytes = nbytes


class Memory:
    """The buffers of one device, which is called `name` in errors."""

    def __init__(self, opened: Opened, name: str) -> None:
        self._opened = opened
        self._name = name
        self._buffers: dict[int, _Held] = {}
        self._owners: dict[int, int] = {}  # id of a buffer of tinygrad's -> number

    def allocate(self, nbytes: int) -> int:
        try:
            return self._hold(_Held(self._opened.allocate(nbytes), nbytes))
        except MemoryError as error:
            used = _size(sum(held.nbytes for held in self._buffers.values()))
            raise DeviceMemoryError(
                f"{self._name} out of memory. Tried to allocate {_size(nbytes)}, and {used} are in "
                f"use already ({error})",
                nbytes,
            ) from error

    def __getitem__(self, number: int) -> Any:
        return self._buffers[number].memory

    def upload(self, number: int, data: memoryview) -> int:
        """Fill a buffer, or a new one where there is none."""
        if not number:
            number = self.allocate(data.nbytes)
        if data.nbytes:
            self._opened.copy_in(self[number], data)
        return number

    def download(self, number: int, data: memoryview) -> None:
        self._opened.copy_out(data, self[number])

    def copy(self, to: int, of: int) -> int:
        """Copy a buffer to another of the same size, on the device. Returns the bytes."""
        nbytes = self._buffers[to].nbytes
        if nbytes:
            self._opened.copy(self[to], self[of], nbytes)
        return nbytes

    def free(self, numbers: Iterable[int]) -> None:
        """Those of them that are this device's."""
        for number in numbers:
            held = self._buffers.pop(number, None)
            if held is None:
                continue
            if held.owner is None:
                self._opened.free(held.memory, held.nbytes)
            else:
                del self._owners[id(held.owner)]

    # Sharing with tinygrad

    def lend(self, number: int, dtype: "DType") -> "Buffer":
        """A buffer of tinygrad's over all of it; as far as possible the same one each time.

        In tinygrad's eyes two buffers have nothing to do with each other, and a kernel of WebGPU
        does nothing if it writes one and reads the other.
        """
        from torch_tiny.uops.tensors import Lent, owning

        held = self._buffers[number]
        if held.owner is None:
            held.owner = owning(self._opened.name, held.memory, max(held.nbytes, 4))
            self._owners[id(held.owner)] = number
        elif held.is_adopted and held.owner.dtype == dtype:
            return held.owner
        for lent in held.lent:
            if lent.dtype == dtype:
                return lent
        lent = Lent(held.owner, held.nbytes // dtype.itemsize, dtype)
        held.lent.add(lent)
        return lent

    def adopt(self, owner: "Buffer") -> int:
        """A number for a buffer of tinygrad's; see `number_of`."""
        from torch_tiny.uops.tensors import opaque

        number = self._hold(_Held(opaque(owner), owner.nbytes, owner, is_adopted=True))
        self._owners[id(owner)] = number
        return number

    def number_of(self, owner: "Buffer") -> int | None:
        """Under which number a buffer of tinygrad's is known here."""
        return self._owners.get(id(owner))

    def is_shared(self, number: int) -> bool:
        """Whether tinygrad may look at it."""
        held = self._buffers[number]
        return held.is_adopted or bool(held.lent)

    def _hold(self, held: _Held) -> int:
        number = next(_numbers)
        self._buffers[number] = held
        return number


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"
