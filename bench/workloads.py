"""The table of workloads. To add one, write a function that makes its step and add a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from bench import operators, training
from bench.decoding import TOKENS, decode
from bench.sides import EAGER_CPU, EAGER_CUDA, Side, Step


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
    has_optimizer: bool = False
    """So every step leaves other parameters behind, and only first results can be compared."""
    in_mean: bool = True
    """Whether it is work that one would want done, or only shows what an operator costs."""


BARS = {EAGER_CPU: 1.05, EAGER_CUDA: 1.05}

_small_gpt = partial(training.train_gpt, layers=2, width=128, context=64, size=8)
_larger_gpt = partial(training.train_gpt, layers=4, width=256, context=128, size=4)

WORKLOADS = [
    Workload(
        "adds",
        f"{operators.ADDS} dependent adds on 16x16, recorded and run; per operator",
        operators.adds,
        operators=operators.ADDS,
        bars={EAGER_CPU: 1.5},
        in_mean=False,
    ),
    Workload(
        "adds-recording",
        "the same, recorded only; per operator",
        operators.adds,
        wait=Wait.NOT_COUNTED,
        operators=operators.ADDS,
        bars={EAGER_CPU: 0.5},
        in_mean=False,
    ),
    Workload(
        "chain",
        "6 elementwise operators on 16M float32",
        operators.chain,
        bars={EAGER_CPU: 1.0},
    ),
    Workload("gelu-bias", "gelu(x + bias), 4096x1024", operators.gelu_bias, bars=BARS),
    Workload("softmax", "of rows, 4096x1024", operators.softmax, bars=BARS),
    Workload(
        "layer-norm", "of rows with weight and bias, 4096x1024", operators.layer_norm, bars=BARS
    ),
    Workload(
        "rms-norm", "of rows of x + residual, both kept, 4096x1024", operators.rms_norm, bars=BARS
    ),
    Workload(
        "cross-entropy",
        "forward and backward, 512 rows of 32k classes",
        operators.cross_entropy,
        bars=BARS,
    ),
    Workload("cholesky", "256 systems of 32x32 factored and solved", operators.cholesky, bars=BARS),
    *(
        Workload(
            f"many-{name}",
            f"{operators.MATRICES} matrices of 32x32, {operators.MATRICES_ON_GPU} on a GPU: {what}",
            make,
            bars={EAGER_CPU: 0.7, EAGER_CUDA: 0.5},
            in_mean=False,
        )
        for name, what, make in (
            ("cholesky", "Cholesky's factor", operators.many_cholesky),
            ("lu", "LU with pivots", operators.many_lu),
            ("solves", "a system solved by LU", operators.many_solves),
        )
    ),
    Workload(
        "adam",
        "Adam alone, 100 tensors of 100k",
        training.adam,
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "mlp",
        "train step of 784-512-512-10, batch 128, Adam, loss.item()",
        partial(training.train_mlp, read_loss=True),
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "mlp-unread",
        "the same without loss.item()",
        partial(training.train_mlp, read_loss=False),
        wait=Wait.EACH_BLOCK,
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "cnn",
        "train step of 3 convolutions with batch norm, 32 of 3x32x32, SGD with momentum",
        training.train_cnn,
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "lstm",
        "train step of nn.LSTM, width 128, 32 sequences of 32, Adam",
        training.train_lstm,
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "gpt",
        "train step of 2 layers, width 128, 64 tokens, batch 8, AdamW, loss.item()",
        partial(_small_gpt, read_loss=True),
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "gpt-unread",
        "the same without loss.item()",
        partial(_small_gpt, read_loss=False),
        wait=Wait.EACH_BLOCK,
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "gpt-larger",
        "train step of 4 layers, width 256, 128 tokens, batch 4, AdamW, loss.item()",
        partial(_larger_gpt, read_loss=True),
        bars=BARS,
        has_optimizer=True,
    ),
    Workload(
        "gpt-decode",
        f"4 layers, width 256, {TOKENS} tokens one by one with a cache; per token",
        decode,
        operators=TOKENS,
        bars=BARS,
    ),
]
