"""What the threads of a soak share: the CPU's generator, and a bin for tensors that others drop."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_numbers = threading.RLock()
"""Held by whoever draws from the generators that the whole process shares."""

bin_of_tensors: deque[Any] = deque()
"""What is put here is dropped by another thread, at any time."""

roundings: deque[int] = deque()
"""The inputs of each play that differed as the CPU does from itself."""


@contextmanager
def host_numbers(seed: int) -> Iterator[None]:
    """The numbers of the CPU, of NumPy and of Python, seeded, for this thread alone."""
    with _numbers:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all devices
        np.random.seed(seed)
        random.seed(seed)
        yield


def seed_of(device: str, seed: int) -> None:
    """Seed the generator of one tiny device."""
    index = torch.device(device).index or 0
    torch.tiny.default_generators[index].manual_seed(seed)
