"""The table of workloads. To add one, write a function that makes its step and add a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import torch
from torch import Tensor

from bench.models import Gpt, mlp, training
from bench.sides import EAGER_CPU, Side

# Does the work once; the result is compared between the sides, once.
Step = Callable[[], Tensor]


class Wait(Enum):
    """When to wait for the device, and whether that counts."""

    EACH_STEP = "each step, counted"
    EACH_BLOCK = "after the last step of a block, counted"
    NOT_COUNTED = "each step, not counted"


@dataclass(frozen=True)
class Workload:
    """What is run, and how much of an opponent's time it may take."""

    name: str
    what: str
    make: Callable[[Side], Step]
    wait: Wait = Wait.EACH_STEP
    operators: int = 1
    """Times are given per operator where a step is nothing but that many equal ones."""
    bars: Mapping[Side, float] = field(default_factory=dict)


ADDS = 100


def adds(side: Side) -> Step:
    x, y = (torch.randn(16, 16).to(side.device) for _ in range(2))

    def step() -> Tensor:
        total = x
        for _ in range(ADDS):
            total = total + y
        return total

    return step


def chain(side: Side) -> Step:
    x = torch.randn(16 * 2**20).to(side.device)
    return lambda: ((x * x + x).tanh() * 0.5 - x).abs()


def mlp_training(side: Side, *, read_loss: bool) -> Step:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(128, 784), torch.randint(10, (128,))

    network = mlp(784, 512, 512, 10)
    return training(side, network, torch.optim.Adam, batch, read_loss=read_loss)


def gpt_training(side: Side, *, read_loss: bool) -> Step:
    size, context, tokens = 8, 64, 256

    def batch() -> tuple[Tensor, Tensor]:
        text = torch.randint(tokens, (size, context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    network = Gpt(layers=2, width=128, heads=4, context=context, tokens=tokens)
    return training(side, network, torch.optim.AdamW, batch, read_loss=read_loss)


WORKLOADS = [
    Workload(
        "adds",
        f"{ADDS} dependent adds on 16x16, recorded and run; per operator",
        adds,
        operators=ADDS,
        bars={EAGER_CPU: 1.5},
    ),
    Workload(
        "adds-recording",
        "the same, recorded only; per operator",
        adds,
        wait=Wait.NOT_COUNTED,
        operators=ADDS,
        bars={EAGER_CPU: 0.6},
    ),
    Workload(
        "mlp",
        "train step of 784-512-512-10, batch 128, Adam, loss.item()",
        partial(mlp_training, read_loss=True),
        bars={EAGER_CPU: 1.1},
    ),
    Workload(
        "mlp-unread",
        "the same without loss.item()",
        partial(mlp_training, read_loss=False),
        wait=Wait.EACH_BLOCK,
        bars={EAGER_CPU: 1.1},
    ),
    Workload(
        "gpt",
        "train step of 2 layers, width 128, 64 tokens, batch 8, AdamW, loss.item()",
        partial(gpt_training, read_loss=True),
        bars={EAGER_CPU: 1.1},
    ),
    Workload(
        "gpt-unread",
        "the same without loss.item()",
        partial(gpt_training, read_loss=False),
        wait=Wait.EACH_BLOCK,
        bars={EAGER_CPU: 1.1},
    ),
    Workload(
        "chain",
        "6 elementwise operators on 16M float32",
        chain,
        bars={EAGER_CPU: 1.0},
    ),
]
