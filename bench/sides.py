"""The sides of a comparison: the device itself and its opponents."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

# Does the work once; the result is compared between the sides.
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Side:
    """One way to run a workload. What an opponent does differently is a field here."""

    name: str
    device: str
    kind: str = "eager"
    """What --against calls it."""
    alone: bool = False
    """Cannot share a process with tiny."""
    optimizer: str = ""
    """Which implementation an optimizer is asked for; PyTorch's choice if it is empty."""
    compile_mode: str = ""
    """What torch.compile is asked for; empty: it is not used."""

    @property
    def differs_in_optimizer_only(self) -> bool:
        """So there is nothing to see in a workload without one."""
        return bool(self.optimizer) and not self.compile_mode

    @property
    def optimizer_options(self) -> dict[str, bool]:
        return {self.optimizer: True} if self.optimizer else {}

    def load(self) -> None:
        """Make the device known to torch."""
        if self.device == "tiny":
            importlib.import_module("torch_tiny")

    def synchronize(self) -> None:
        """Wait until all that was asked of the device is done."""
        torch.get_device_module(self.device).synchronize()

    def compiled(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function as this side runs it; to be called on what is worth compiling."""
        if not self.compile_mode:
            return function
        return torch.compile(function, mode=self.compile_mode)


OURS = Side("tiny", "tiny", kind="tiny")
EAGER_CPU = Side("eager CPU", "cpu")
# Autograd serves one accelerator: where tiny is registered, backward on CUDA raises.
EAGER_CUDA = Side("eager CUDA", "cuda", alone=True)

# A network is trained with torch.compile around its loss and a fused optimizer beside it.
COMPILED_CPU = Side("compile CPU", "cpu", "compile", True, "fused", "default")
COMPILED_CUDA = Side("compile CUDA", "cuda", "compile", True, "fused", "default")
GRAPHED_CUDA = Side("graphs CUDA", "cuda", "compile", True, "fused", "reduce-overhead")

OPPONENTS = {
    "cpu": [
        EAGER_CPU,
        Side("fused CPU", "cpu", "fused", optimizer="fused"),
        Side("foreach CPU", "cpu", "foreach", optimizer="foreach"),
        COMPILED_CPU,
    ],
    "cuda": [
        EAGER_CUDA,
        Side("fused CUDA", "cuda", "fused", True, "fused"),
        Side("foreach CUDA", "cuda", "foreach", True, "foreach"),
        COMPILED_CUDA,
        GRAPHED_CUDA,
    ],
}
KINDS = list(dict.fromkeys(side.kind for sides in OPPONENTS.values() for side in sides))


def opponents(memory: str, kinds: list[str], *, has_optimizer: bool) -> list[Side]:
    """Those of these kinds that can be met where tiny lives in this memory."""
    return [
        side
        for side in OPPONENTS[torch.device(memory).type]
        if side.kind in kinds and (has_optimizer or not side.differs_in_optimizer_only)
    ]
