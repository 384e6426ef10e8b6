"""GradScaler where there is no float64: it takes the reciprocal of its scale in that type."""

from collections.abc import Callable
from typing import Any

import torch
from torch.amp import GradScaler


class _Scale:
    """Stays in float32: a scale is a power of two, whose reciprocal is exact."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.device = scale.device
        self._scale = scale

    def double(self) -> torch.Tensor:
        return self._scale


def install(devices: set[int]) -> None:
    """Patch GradScaler once, for these devices."""
    original: Callable[..., Any] = GradScaler.unscale_

    def unscale_(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        scale = scaler._scale
        if scale is None or scale.device.type != "tiny" or scale.device.index not in devices:
            original(scaler, optimizer)
            return
        scaler._scale = _Scale(scale)
        try:
            original(scaler, optimizer)
        finally:
            scaler._scale = scale

    setattr(GradScaler, "unscale_", unscale_)  # noqa: B010
