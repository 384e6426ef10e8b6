"""Buffers of a portable device by number, as the core knows them."""

import itertools
from collections.abc import Iterable
from typing import Any

from torch_tiny.portable.kind import Opened

_numbers = itertools.count(1)


class Memory:
    """The buffers of one device."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._buffers: dict[int, tuple[Any, int]] = {}

    def allocate(self, nbytes: int) -> int:
        number = next(_numbers)
        self._buffers[number] = (self._opened.allocate(nbytes), nbytes)
        return number

    def __getitem__(self, number: int) -> Any:
        return self._buffers[number][0]

    def upload(self, number: int, data: memoryview) -> int:
        """Fill a buffer, or a new one where there is none."""
        if not number:
            number = self.allocate(data.nbytes)
        if data.nbytes:
            self._opened.copy_in(self[number], data)
        return number

    def download(self, number: int, data: memoryview) -> None:
        self._opened.copy_out(data, self[number])

    def free(self, numbers: Iterable[int]) -> None:
        """Those of them that are this device's."""
        for number in numbers:
            if number in self._buffers:
                self._opened.free(*self._buffers.pop(number))
