"""Training steps. Each changes the parameters, so no two of them give the same result."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

from bench.models import Gpt, LstmClassifier, cnn, mlp
from bench.sides import Side, Step

BATCHES = 8

Batch = Callable[[], tuple[Tensor, Tensor]]
# Called as one: with parameters, and with what the side asks for.
MakeOptimizer = Callable[..., Optimizer]


def train_mlp(side: Side, *, read_loss: bool) -> Step:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(128, 784), torch.randint(10, (128,))

    return _training(side, mlp(784, 512, 512, 10), Adam, batch, read_loss=read_loss)


def train_gpt(
    side: Side, *, layers: int, width: int, context: int, size: int, read_loss: bool
) -> Step:
    tokens = 256

    def batch() -> tuple[Tensor, Tensor]:
        text = torch.randint(tokens, (size, context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    network = Gpt(layers=layers, width=width, heads=4, context=context, tokens=tokens)
    return _training(side, network, AdamW, batch, read_loss=read_loss)


def train_cnn(side: Side) -> Step:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(32, 3, 32, 32), torch.randint(10, (32,))

    return _training(side, cnn(3, 32, 64, 128, classes=10), partial(SGD, momentum=0.9), batch)


def train_lstm(side: Side) -> Step:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(32, 32, 64), torch.randint(10, (32,))

    return _training(side, LstmClassifier(64, 128, classes=10), Adam, batch)


def adam(side: Side) -> Step:
    """The optimizer alone; its parameters keep the gradients they are given."""
    count, size = 100, 100_000
    parameters = [nn.Parameter(torch.randn(size).to(side.device)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn(size).to(side.device)
    # What is compiled is the default: there is nothing left to compile in a fused one.
    options = {} if side.compile_mode else side.optimizer_options
    make_optimizer: MakeOptimizer = Adam
    optimizer = make_optimizer(parameters, lr=1e-3, **options)

    @side.compiled
    def update() -> None:
        optimizer.step()

    def step() -> Tensor:
        update()
        return parameters[0].detach()

    return step


def _training(
    side: Side,
    network: nn.Module,
    make_optimizer: MakeOptimizer,
    batch: Batch,
    *,
    read_loss: bool = True,
) -> Step:
    """A step trains on the next of a few batches of (input, class) and returns the loss."""
    network.to(side.device)
    optimizer = make_optimizer(network.parameters(), lr=1e-3, **side.optimizer_options)
    batches = cycle(_moved((batch() for _ in range(BATCHES)), side.device))
    loss_of = side.compiled(lambda x, target: F.cross_entropy(network(x), target))

    def step() -> Tensor:
        loss = loss_of(*next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read_loss:
            loss.item()
        return loss.detach()

    return step


def _moved(pairs: Iterable[tuple[Tensor, Tensor]], device: str) -> list[tuple[Tensor, Tensor]]:
    return [(x.to(device), target.to(device)) for x, target in pairs]
