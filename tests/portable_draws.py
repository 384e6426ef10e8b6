"""Draws from the portable stream, made by a process of their own: see test_random_portable.py."""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import torch_tiny  # noqa: F401  (registers the device where it is not installed)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MANY = 200_000
D = "tiny"
IS_ON_GPU = os.environ.get("TORCH_TINY_DEVICES", "").startswith("cuda")
IS_COMPILED = os.environ.get("TORCH_TINY_ENGINE") == "uop"

_OF_FLOATS = (
    "rand", "uniform", "randn", "normal", "exponential", "cauchy", "log_normal", "geometric",
    "bernoulli", "bernoulli_tensor", "normal_of_tensors", "random", "random_range", "dropout",
    "nothing", "one",
)  # fmt: skip
_OF_INTEGERS = ("random", "random_to", "random_range", "bernoulli", "geometric", "randint")
_ODD_ONES = ("all_bits", "wide_range", "bool", "mask", "transposed")


Draws = dict[str, Tensor]


def drawn(folder: Path, engine: str, **env: str) -> Draws:
    """All draws of a process of its own, from the portable stream."""
    from harness import python

    path = folder / f"{engine}.pt"
    how = "compiled" if engine == "uop" else "all"
    python(
        f"import runpy, sys; sys.argv = ['', {str(path)!r}, {how!r}];"
        f"runpy.run_path({__file__!r}, run_name='__main__')",
        timeout=600,
        **{
            "TORCH_TINY_ENGINE": engine,
            "TORCH_TINY_RNG": "portable",
            "TORCH_TINY_CACHE": "",
            **env,
        },
    )
    found: Draws = torch.load(path)
    return found


def names() -> list[str]:
    """Of what is drawn by every engine."""
    return [
        *(f"{name} {dtype}" for dtype in FLOATS for name in _OF_FLOATS),
        *(f"{name} {dtype}" for dtype in INTEGERS for name in _OF_INTEGERS),
        *_ODD_ONES,
    ]


def of_floats(dtype: torch.dtype) -> dict[str, Tensor]:
    def empty(*shape: int) -> Tensor:
        return torch.zeros(shape or (5, 33), device=D, dtype=dtype)

    found = {
        "rand": torch.rand(5, 33, device=D, dtype=dtype),
        "uniform": empty().uniform_(-1.3, 4.7),
        "randn": torch.randn(5, 33, device=D, dtype=dtype),
        "normal": empty().normal_(2.3, 0.7),
        "exponential": empty().exponential_(1.7),
        "cauchy": empty().cauchy_(0.3, 1.9),
        "log_normal": empty().log_normal_(0.3, 0.9),
        "geometric": empty().geometric_(0.13),
        "bernoulli": empty().bernoulli_(0.37),
        "normal_of_tensors": torch.normal(empty(33) + 3, empty(33) + 0.5),
        "random": empty().random_(),
        "random_range": empty().random_(-3, 90),
        "dropout": F.dropout(torch.ones(5, 33, device=D, dtype=dtype), 0.3),
        "nothing": empty(0, 3).normal_(),
        "one": empty(1).normal_(),
    }
    if IS_ON_GPU and IS_COMPILED:  # there PyTorch's own kernel has to check the chances
        empty().bernoulli_(0.5)  # in its place in the stream
    else:
        chances = torch.linspace(0, 1, 33, device=D, dtype=dtype).expand(5, 33)
        found["bernoulli_tensor"] = empty().bernoulli_(chances)
    return found


def of_integers(dtype: torch.dtype) -> dict[str, Tensor]:
    def empty() -> Tensor:
        return torch.zeros(5, 33, device=D, dtype=dtype)

    return {
        "random": empty().random_(),
        "random_to": empty().random_(100),
        "random_range": empty().random_(3, 90),
        "bernoulli": empty().bernoulli_(0.37),
        "geometric": empty().geometric_(0.4),
        "randint": torch.randint(0, 90, (33,), device=D, dtype=dtype),
    }


def odd_ones() -> dict[str, Tensor]:
    zeros = torch.zeros(99, device=D, dtype=torch.int64)
    return {
        "all_bits": zeros.clone().random_(-(2**63), None),
        "wide_range": zeros.clone().random_(-(2**60), 2**61),
        "bool": zeros.bool().random_(),
        "mask": zeros.bool().bernoulli_(0.3),
        "transposed": torch.zeros(6, 7, device=D).T[::2].normal_(),
    }


def not_compiled() -> dict[str, Tensor]:
    """What mode `uop` refuses, because a part of it has no lowering."""
    chances = torch.arange(1.0, 9, device=D).expand(3, 8)
    return {
        "complex": torch.view_as_real(torch.randn(9, device=D, dtype=torch.complex64)),
        "randperm": torch.randperm(60, device=D),
        "multinomial": torch.multinomial(chances, 5),
        "multinomial_replacement": torch.multinomial(chances, 12, replacement=True),
        "poisson": torch.poisson(torch.full((20,), 4.0, device=D)),
        "gamma": torch._standard_gamma(torch.full((9,), 2.0, device=D)),
        "rrelu": F.rrelu(-torch.ones(20, device=D), training=True),
    }


def samples() -> dict[str, Tensor]:
    """Enough of each distribution for statistics."""

    def empty(dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(MANY, device=D, dtype=dtype)

    drawn = {}
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        drawn |= {
            f"uniform {name}": empty(dtype).uniform_(),
            f"normal {name}": empty(dtype).normal_(),
            f"exponential {name}": empty(dtype).exponential_(),
            f"cauchy {name}": empty(dtype).cauchy_(),
            f"log_normal {name}": empty(dtype).log_normal_(0, 1),
            f"geometric {name}": empty(dtype).geometric_(0.3),
        }
    return drawn | {
        "bernoulli": empty().bernoulli_(0.3),
        "integers": empty(torch.int64).random_(0, 100),
        "bytes": empty(torch.uint8).random_(),
        "dropout": F.dropout(torch.ones(MANY, device=D), 0.2),
    }


def draws(compiled: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    found = {f"{k} {dtype}": v for dtype in FLOATS for k, v in of_floats(dtype).items()}
    found |= {f"{k} {dtype}": v for dtype in INTEGERS for k, v in of_integers(dtype).items()}
    torch.manual_seed(2**63 + 12345)
    found |= odd_ones()
    if compiled:
        return found
    found |= not_compiled()
    torch.manual_seed(4)
    return found | samples()


if __name__ == "__main__":
    path, compiled = sys.argv[1], sys.argv[2] == "compiled"
    draws(compiled)  # the first call of each kind runs at once, whatever the engine
    torch.save({name: drawn.cpu() for name, drawn in draws(compiled).items()}, path)
