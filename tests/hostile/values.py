"""The values: the limits of every type, from memory and computed, so that no memory holds them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (torch.bool, *INTS, *FLOATS)
EDGE = 13  # values of a type; a vector has all pairs of them
LENGTH = EDGE * EDGE


def edges(dtype: torch.dtype) -> list[float | int | bool]:
    """What goes wrong first, in each type."""
    if dtype == torch.bool:
        return [True, False] * (EDGE // 2) + [True]
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        small = [-1, -2, -3] if low else [high // 2, high // 2 + 1, 129]
        return [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, *small, high // 3]
    info, inf, nan = torch.finfo(dtype), float("inf"), float("nan")
    least = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).item()
    return [
        *(nan, inf, -inf, 0.0, -0.0, least, -least, info.tiny, info.max, info.min),
        *(1.0, -1.0, -2.5),
    ]


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors in memory: each value of the type meets each other."""
    given = torch.tensor(edges(dtype), dtype=dtype)
    return given.repeat(EDGE), given.repeat_interleave(EDGE)


Source = Callable[[Tensor, str], Tensor]
"""A vector of the type of one in memory, on a device."""


def _loaded(memory: Tensor, device: str) -> Tensor:  # noqa: ARG001
    return memory


def _counted(memory: Tensor, device: str) -> Tensor:
    return torch.arange(LENGTH, device=device).to(memory.dtype)


def _top(memory: Tensor, device: str) -> Tensor:
    dtype = memory.dtype
    top = True if dtype == torch.bool else _limits(dtype).max
    return torch.full((LENGTH,), top, dtype=dtype, device=device)


def _bottom(memory: Tensor, device: str) -> Tensor:
    dtype = memory.dtype
    bottom = False if dtype == torch.bool else _limits(dtype).min
    return torch.full((LENGTH,), bottom, dtype=dtype, device=device)


def _compared(memory: Tensor, device: str) -> Tensor:  # noqa: ARG001
    return (memory > 0).to(memory.dtype)


def _negative_zero(memory: Tensor, device: str) -> Tensor:
    return torch.full((LENGTH,), -0.0, device=device).to(memory.dtype)


def _limits(dtype: torch.dtype) -> torch.finfo | torch.iinfo:
    return torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)


SOURCES: dict[str, Source] = {
    "loaded": _loaded,
    "counted": _counted,
    "top": _top,
    "bottom": _bottom,
    "compared": _compared,
    "negative_zero": _negative_zero,
}
