"""Random operators that are made of others where a device draws from the portable stream.

Those that networks call for each layer are in csrc/ops/composite_random.cpp.
"""

import math
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from torch_tiny.composed.row import OF_PORTABLE_NUMBERS, Row

_MOST_AT_ONCE = 1 << 24
_MOST_CATEGORIES = 1 << 24


def _random_slopes(x: Tensor, noise: Tensor, lower: float, upper: float, training: bool,
                   generator: Generator | None) -> Tensor:  # fmt: skip
    """What is not above 0 gets a slope of its own, which the noise keeps for the derivative."""
    if x.shape != noise.shape:
        raise RuntimeError(
            "noise tensor shape must match self tensor shape. Got self.shape = "
            f"{list(x.shape)} noise.shape = {list(noise.shape)}"
        )
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2)
    if not x.is_floating_point():
        raise NotImplementedError(
            f"\"rrelu_with_noise_out_cpu\" not implemented for '{_SHORT.get(x.dtype, x.dtype)}'"
        )
    drawn = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    drawn.uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(x.le(0), drawn, 1))
    return x.contiguous() * noise.contiguous()


def _random_slopes_in_place(x: Tensor, *how: Any) -> Tensor:
    return x.copy_(_random_slopes(x, *how))


def _random_slopes_out(x: Tensor, *how: Any) -> Tensor:
    return _to(how[-1], _random_slopes(x, *how[:-1]))


def _categories(x: Tensor, count: int, replacement: bool, generator: Generator | None) -> Tensor:
    """As PyTorch draws one sample: the largest of p / exponential. With replacement, once per
    sample."""
    _check_categories(x, count, replacement)
    if x.numel() == 0:
        return torch.empty(*x.shape[:-1], count, dtype=torch.int64, device=x.device)
    if not (x.max().lt(math.inf) & x.min().ge(0)).item():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if x.sum(-1).eq(0).any().item():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    chances = x if x.dtype == torch.float64 else x.float()
    if not replacement or count == 1:
        keys = chances / torch.empty_like(chances).exponential_(1, generator=generator)
        return keys.argmax(-1, True) if count == 1 else keys.topk(count).indices
    parts = []
    step = max(1, _MOST_AT_ONCE // x.numel())
    for done in range(0, count, step):
        shape = (*chances.shape[:-1], min(step, count - done), chances.shape[-1])
        drawn = torch.empty(shape, dtype=chances.dtype, device=x.device)
        drawn.exponential_(1, generator=generator)
        parts.append((chances.unsqueeze(-2) / drawn).argmax(-1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _check_categories(x: Tensor, count: int, replacement: bool) -> None:
    if x.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not x.is_floating_point():
        raise RuntimeError(
            "multinomial only supports floating-point dtypes for input, got: "
            f"{_SHORT.get(x.dtype, x.dtype)}"
        )
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > x.size(-1):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if x.size(-1) > _MOST_CATEGORIES:
        raise RuntimeError("number of categories cannot exceed 2^24")


def _categories_out(x: Tensor, count: int, replacement: bool, generator: Generator | None,
                    out: Tensor) -> Tensor:  # fmt: skip
    return _to(out, _categories(x, count, replacement, generator))


def _to(out: Tensor, made: Tensor) -> Tensor:
    return out.resize_(made.shape).copy_(made)


# As C++ spells them.
_SHORT = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
TABLE = tuple(
    Row(f"aten::{name}", OF_PORTABLE_NUMBERS, function)
    for name, function in (
        ("rrelu_with_noise", _random_slopes),
        ("rrelu_with_noise_", _random_slopes_in_place),
        ("rrelu_with_noise.out", _random_slopes_out),
        ("multinomial", _categories),
        ("multinomial.out", _categories_out),
    )
)
