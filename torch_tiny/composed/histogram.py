"""Histograms of integers: CUDA counts them, and programs expect that of every device but the CPU,
whose kernel refuses them."""

import torch
from torch import Tensor

from torch_tiny.composed.row import OF_INTEGERS_ON_CPU, Row


def _count(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """As on CUDA, but that 64 bits count places of short integers: bounds are whole numbers, and
    found in the data if equal; the last bin has both of its ends."""
    least, most = _whole(low), _whole(high)
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if least > most:
        raise RuntimeError("max must be larger than min")
    counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
    if x.numel() != 0:
        values = x.reshape(-1).to(torch.int64)
        first = torch.full_like(values[0], least) if least < most else values.min()
        last = torch.full_like(values[0], most) if least < most else values.max()
        widen = first.eq(last).to(torch.int64)  # one value only: in the middle
        first, last = first - widen, last + widen
        bin_of = ((values - first) * bins).div(last - first, rounding_mode="floor")
        inside = values.ge(first).logical_and(values.le(last))
        counts.scatter_add_(0, bin_of.clamp(0, bins - 1), inside.to(torch.int64))
    return counts.to(x.dtype)


def _whole(bound: float) -> int:
    if not -(2**63) <= bound < 2**63:  # nor if it is no number
        raise RuntimeError("value cannot be converted to type int64_t without overflow")
    return int(bound)


def _count_out(x: Tensor, bins: int, low: float, high: float, out: Tensor) -> Tensor:
    counts = _count(x, bins, low, high)
    return out.resize_(counts.shape).copy_(counts)


TABLE = (
    Row("aten::histc", OF_INTEGERS_ON_CPU, _count),
    Row("aten::histc.out", OF_INTEGERS_ON_CPU, _count_out),
)
