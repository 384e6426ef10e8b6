"""Runs the trace after each optimizer step, so that every training step is the same trace."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_tiny import _C


def install() -> None:
    """Hook every optimizer of the process; those without tiny parameters are not affected."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
    # One parameter stands for its group: to miss a device costs a cut in the trace, nothing else.
    firsts = [group["params"][0].device for group in optimizer.param_groups if group["params"]]
    for index in {device.index for device in firsts if device.type == "tiny"}:
        _C.run(index, "optimizer")
