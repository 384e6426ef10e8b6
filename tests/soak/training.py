"""A network in training as a job: every step is compared with the CPU's from the same state.

The CPU starts each compared step where the device is, so that rounding does not add up, and takes
its step along the device's gradients, once they were found to be close to its own.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from harness import numbers as data
from test_nn import NETS as TESTED
from test_optim import cases
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from util import assert_same

from examples.digits import network

from .job import Turn
from .shared import bin_of_tensors, host_numbers, seed_of

NETS = {**TESTED, "digits": lambda: (network(), (5, 1, 8, 8))}

# Its search goes another way after the smallest difference: only with all digits of float64, after
# two of its iterations, and where the CPU comes to the same with inputs and losses that differ in
# the last of them.
_SENSITIVE = "LBFGS"
_ITERATIONS = {"max_iter": 2}
_ROUNDINGS = (1e-15, -1e-15, 3e-15, -3e-15)
# It rounds gradients to bfloat16 and then makes small directions as large as others: parameters may
# be as far off as the CPU's own are along gradients that differ in the last digit of bfloat16.
_IN_HALVES = "Muon"
_NOT_FLAT = "cnn_channels_last"  # LBFGS sees each gradient as one row, and raises on the CPU, too

_NORMALIZED = {
    name
    for name, make in NETS.items()
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in make()[0].modules())
}


class Training:
    def __init__(self) -> None:
        self.is_quiet = False  # layers may draw numbers
        self._net = self._optimizer = ""
        self._options: dict[str, Any] = {}
        self._batch = self._steps = 0
        self._dtype = torch.float32

    def make(self, numbers: Random, turn: Turn) -> None:
        self._net = numbers.choice(list(NETS))
        self._optimizer, self._options = numbers.choice(cases()).values
        self._batch = numbers.choice((1, 2, 3, 4, 7, 8, 16, 33))
        self._steps = numbers.randint(2, 6)
        # Batches of a few are divided by a spread that may be all rounding: more digits for those.
        is_sensitive = self._optimizer == _SENSITIVE or self._net in _NORMALIZED
        if numbers.random() < 0.3 or is_sensitive:
            self._dtype = torch.float64
        if self._optimizer == _SENSITIVE:
            self._options = {**self._options, **_ITERATIONS}
            self._net = "cnn" if self._net == _NOT_FLAT else self._net
        self.play(turn)

    def play(self, turn: Turn) -> None:
        with host_numbers(self._batch):  # which the layers draw
            shape = (max(self._batch, 2), *NETS[self._net]()[1][1:])
        device, cpu = (self._side(where, shape) for where in (turn.device, "cpu"))
        for number in range(self._steps):
            x = data(*shape, dtype=self._dtype, seed=number + 100 * turn.inputs)
            target = torch.arange(shape[0]) % 3
            if number % 2:  # in between, steps that nobody looks at
                seed_of(turn.device, number)
                device.step(x, target)
                continue
            cpu.start_from(device)
            doubts, along = [], []
            if self._optimizer == _SENSITIVE:
                doubts = [self._side("cpu", shape, rounding) for rounding in _ROUNDINGS]
            if self._optimizer == _IN_HALVES:
                along = [self._side("cpu", shape) for _ in _ROUNDINGS]
            for doubt in (*doubts, *along):
                doubt.start_from(device)
            seed_of(turn.device, number)
            loss = device.step(x, target)
            with host_numbers(number):
                take = cpu.step if doubts else cpu.differentiated
                expected = take(x, target)
            assert_same(loss, expected, strides=False)
            if not doubts:
                cpu.step_along(device)
            for seed, doubt in enumerate(along):
                with host_numbers(number):
                    doubt.differentiated(x, target)
                doubt.step_along(device, seed)
            if not all(
                self._agree(cpu, doubt, x, target, number, which)
                for which, doubt in enumerate(doubts)
            ):
                continue
            if along:
                cpu.assert_nearer(device, along)
            else:
                assert_same(device.state(), cpu.state(), strides=False)
        if turn.drops:
            bin_of_tensors.append(device)

    def _agree(
        self, cpu: _Side, doubt: _Side, x: Tensor, target: Tensor, number: int, which: int
    ) -> bool:
        """Whether the step is one that rounding does not decide."""
        rounded = x * (1 + 1e-15 * data(*x.shape, dtype=x.dtype, seed=number + 100 * which))
        with host_numbers(number):
            doubt.step(rounded, target)
        return cpu.is_like(doubt)

    def text(self) -> str:
        how = f"{self._optimizer}({self._options}), batches of {self._batch}, {self._dtype}"
        return f"# {self._net} by {how}, {self._steps} steps"

    def _side(self, where: str, shape: tuple[int, ...], rounding: float = 0.0) -> _Side:
        with host_numbers(self._batch):
            net = NETS[self._net]()[0]
            net(data(*shape))  # lazy layers take their sizes
        net.to(device=where, dtype=self._dtype)
        few = [p for p in net.parameters() if p.dim() == 2 or self._optimizer != "Muon"]
        optimizer = getattr(torch.optim, self._optimizer)(few, lr=0.01, **self._options)
        return _Side(net, optimizer, rounding)


class _Side:
    """A network and its optimizer on one device."""

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, rounding: float = 0.0
    ) -> None:
        """rounding: by how much a loss is too large, the next one too small, and so on."""
        self._net, self._optimizer = net, optimizer
        self._rounding = rounding
        self._where = next(net.parameters()).device

    def differentiated(self, x: Tensor, target: Tensor) -> Tensor:
        self._net.zero_grad()  # also of parameters that the optimizer leaves alone
        loss = F.cross_entropy(self._net(x.to(self._where)), target.to(self._where))
        if self._rounding:
            loss, self._rounding = loss * (1 + self._rounding), -self._rounding
        loss.backward()
        return loss.detach()

    def step(self, x: Tensor, target: Tensor) -> Tensor:
        loss = self._optimizer.step(lambda: self.differentiated(x, target))
        assert isinstance(loss, Tensor)
        return loss.detach()

    def start_from(self, other: _Side) -> None:
        self._net.load_state_dict(other._net.state_dict())
        theirs = dict(zip(other._parameters(), self._parameters(), strict=True))
        for parameter, state in other._optimizer.state.items():
            self._optimizer.state[theirs[parameter]] = tree_map(self._copy, state)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _copy(self, value: Any) -> Any:
        return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value

    def step_along(self, other: _Side, seed: int | None = None) -> None:
        """Take a step along the other's gradients, which are as good as its own; with a seed, along
        others of which the last digit in bfloat16 differs."""
        for mine, theirs in zip(self._net.parameters(), other._net.parameters(), strict=True):
            if mine.grad is not None:
                assert theirs.grad is not None
                assert_same(theirs.grad, mine.grad, strides=False)
                mine.grad.copy_(theirs.grad)
                if seed is not None:
                    digit = torch.finfo(torch.bfloat16).eps
                    mine.grad.mul_(1 + digit * data(*mine.shape, dtype=mine.dtype, seed=seed))
        self._optimizer.step()

    def is_like(self, other: _Side) -> bool:
        try:
            assert_same(other.state(), self.state(), strides=False)
        except AssertionError:
            return False
        return True

    def assert_nearer(self, other: _Side, doubts: list[_Side]) -> None:
        """The other's parameters are nearer than the farthest of the doubts', or close; what its
        optimizer keeps is close."""
        (mine, kept), (theirs, others_kept) = self.state(), other.state()
        assert_same(others_kept, kept, strides=False)
        for name, expected in mine.items():
            spread = max(_distance(doubt.state()[0][name], expected) for doubt in doubts)
            if not _distance(theirs[name], expected) <= spread < math.inf:
                assert_same(theirs[name], expected, strides=False)

    def state(self) -> list[Any]:
        state = self._optimizer.state_dict()["state"]
        return [
            dict(self._net.state_dict()),
            [v for one in state.values() for v in one.values() if isinstance(v, Tensor)],
        ]


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.cpu() - other).abs().max())
