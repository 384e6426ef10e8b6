"""The sides of a comparison: the device itself and its opponents."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Side:
    """One way to run a workload. What an opponent does differently is a field here."""

    name: str
    device: str

    def synchronize(self) -> None:
        """Wait until all that was asked of the device is done."""
        torch.get_device_module(self.device).synchronize()


OURS = Side("tiny", "tiny")
EAGER_CPU = Side("eager CPU", "cpu")
EAGER_CUDA = Side("eager CUDA", "cuda")


def opponents() -> list[Side]:
    """Those that can be met on the memory that tiny lives in."""
    on_cuda = torch.device(memory()).type == "cuda"
    return [EAGER_CPU, EAGER_CUDA] if on_cuda else [EAGER_CPU]


def memory() -> str:
    """The memory behind device "tiny": "cpu" or "cuda:0"."""
    name: str = torch.get_device_module("tiny").device_name(0)
    return name
