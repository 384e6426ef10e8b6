"""Sample calls of an operator, and the same call twice: on the oracle and on the device."""

import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map
from util import DEVICE, ORACLE

_T = TypeVar("_T")

SEED = 0
SAMPLES = int(os.environ.get("TORCH_TINY_OPDB_SAMPLES", "24"))  # per item; 0 for all of them
TIMES = 2  # the device may run a call that it has not seen before, and record it from then on
_CONSIDERED = 200  # a few operators have more than a thousand
_BYTES = 1 << 20  # and a few are large

# Operators that take all tensors but the first on the CPU, whatever the device.
_CPU_ARGUMENTS = {"tensor_split"}

_WIDER: dict[torch.dtype, torch.dtype] = {}

# What stands for "the device" in samples; where there is a GPU, some name both.
_HOSTS = re.compile(r"(cpu|cuda)(:\d+)?")


def samples(
    op: OpInfo, dtype: torch.dtype, requires_grad: bool = False, limit: int | None = None
) -> list[SampleInput]:
    """The first samples of `op` and some spread over the rest, the same ones every time."""
    seed_host()
    limit = SAMPLES if limit is None else limit
    # Not op.sample_inputs, which seeds every device for each sample and looks up who is asking.
    found = op.sample_inputs_func(op, "cpu", dtype, requires_grad)
    if limit == 0:
        return list(found)
    everything = [sample for sample in islice(found, _CONSIDERED) if _size(sample) <= _BYTES]
    first, rest = everything[: (limit + 1) // 2], everything[(limit + 1) // 2 :]
    wanted = min(limit - len(first), len(rest))
    return first + [rest[i * len(rest) // wanted] for i in range(wanted)]


def repeated(given: list[_T]) -> list[_T]:
    """All samples, then all of them again."""
    return given * TIMES


@contextmanager
def limited(count: int, times: int = TIMES) -> Iterator[None]:
    """Look at this many samples of each item, this many times."""
    global SAMPLES, TIMES
    before, (SAMPLES, TIMES) = (SAMPLES, TIMES), (count, times)
    try:
        yield
    finally:
        SAMPLES, TIMES = before


@contextmanager
def in_double() -> Iterator[None]:
    """Compute with twice the digits: float32 tensors become float64 where they are copied."""
    global _WIDER
    before, _WIDER = _WIDER, {torch.float32: torch.float64, torch.complex64: torch.complex128}
    try:
        yield
    finally:
        _WIDER = before


def with_gaps(sample: SampleInput) -> SampleInput:
    """The same sample with tensors that are every second element of larger ones."""
    return sample.transform(_with_gaps)


def seed() -> None:
    """Start the random numbers over: the CPU's and the devices', NumPy's and Python's."""
    seed_host()
    for device in {DEVICE, ORACLE} - {"cpu"}:
        torch.get_device_module(device).manual_seed_all(SEED)


def seed_host() -> None:
    """The same without the devices'."""
    torch.default_generator.manual_seed(SEED)  # not torch.manual_seed: see above
    np.random.seed(SEED)
    random.seed(SEED)


class Call:
    """The arguments of one sample, copied to a device; `tensors` are the tensors among them."""

    def __init__(self, op: OpInfo, sample: SampleInput, device: str) -> None:
        move = Mover(device)
        self.device = device
        self.number = 0  # of the sample, among those of its check
        self.input = move(sample.input)
        if op.name in _CPU_ARGUMENTS:
            move.device = "cpu"
        self.args, self.kwargs = move(sample.args), move(sample.kwargs)
        self.tensors = move.moved
        self.concerns_device = move.concerns_device
        self.process = sample.output_process_fn_grad  # what of a result can be differentiated

    def run(self, function: Callable[..., Any], **more: Any) -> Any:
        """Call `function` with these arguments."""
        return function(self.input, *self.args, **self.kwargs, **more)


class Mover:
    """Copies structures of tensors to a device and keeps each tensor's layout.

    Strides, offsets, storages shared between tensors, and a tensor that appears twice stay so.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.moved: list[torch.Tensor] = []
        self.concerns_device = False
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            self.concerns_device = True
            if id(value) not in self._tensors:
                with torch.no_grad():
                    self._tensors[id(value)] = self._tensor(value)
                self.moved.append(self._tensors[id(value)])
            return self._tensors[id(value)]
        if isinstance(value, str | torch.device) and _HOSTS.fullmatch(str(value)):
            self.concerns_device = True
            return type(value)(self.device)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        wider = _WIDER.get(tensor.dtype)
        if wider is not None:
            result = tensor.detach().to(wider)
        elif tensor.layout == torch.strided:
            result = torch.empty(0, dtype=tensor.dtype, device=self.device)
            storage = self._storage(tensor.untyped_storage())
            result.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
            if tensor.is_conj():
                result = torch.conj(result)
            if tensor.is_neg():
                result = torch._neg_view(result)
        else:
            result = tensor.detach().clone().to(self.device)
        return result.requires_grad_(tensor.requires_grad)

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if storage._cdata not in self._storages:
            contents = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            copy = torch.empty_like(contents, device=self.device).copy_(contents)
            self._storages[storage._cdata] = copy.untyped_storage()
        return self._storages[storage._cdata]


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a structure, in order."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _with_gaps(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    larger = torch.ones((*value.shape, 2), dtype=value.dtype)
    larger[..., 1] = value
    return larger[..., 1].detach().requires_grad_(value.requires_grad)


def _size(sample: SampleInput) -> int:
    given = tensors_in((sample.input, sample.args, sample.kwargs))
    return sum(t.untyped_storage().nbytes() for t in given if t.layout == torch.strided)
