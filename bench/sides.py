"""The sides of a comparison: the device itself and its opponents."""

import importlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Side:
    """One way to run a workload. What an opponent does differently is a field here."""

    name: str
    device: str
    alone: bool = False
    """Cannot share a process with tiny."""

    def load(self) -> None:
        """Make the device known to torch."""
        if self.device == "tiny":
            importlib.import_module("torch_tiny")

    def synchronize(self) -> None:
        """Wait until all that was asked of the device is done."""
        torch.get_device_module(self.device).synchronize()


OURS = Side("tiny", "tiny")
EAGER_CPU = Side("eager CPU", "cpu")
# Autograd serves one accelerator: where tiny is registered, backward on CUDA raises.
EAGER_CUDA = Side("eager CUDA", "cuda", alone=True)


def opponents(memory: str) -> list[Side]:
    """Those that can be met where tiny lives in this memory."""
    return [EAGER_CPU] if memory == "cpu" else [EAGER_CPU, EAGER_CUDA]
