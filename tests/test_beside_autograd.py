"""Calls that autograd has nothing to do with are recorded before it sees them. Whatever else looks
at calls there must not notice: forward mode, versions, modes, lazy conjugation."""

from typing import Any

import pytest
import torch
from harness import agree, numbers
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

TIMES = 4
"""From the second time on a call is one that is known."""


def test_gradients_switched_on_between_calls(device: str) -> None:
    def program(where: str) -> list[Any]:
        x, y = numbers(3, 3).to(where), numbers(3, 3, seed=1).to(where)
        seen: list[Any] = []
        for turn in range(TIMES):
            y.requires_grad_(turn % 2 == 1)
            z = (x * y).tanh() + y
            seen += [z.requires_grad, z.grad_fn is None, z]
            if turn % 2 == 1:
                seen += torch.autograd.grad(z.sum(), y)
            with torch.no_grad():
                seen.append((x * y).requires_grad)
        return seen

    agree(program, device)


def test_tangents_of_views_and_of_their_bases(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, t = numbers(4, 4).to(where), numbers(4, 4, seed=1).to(where)
        seen: list[Tensor] = []
        for turn in range(TIMES):
            plain = x.clone()
            row, column = plain[turn % 2], plain[:, 1]
            seen.append(row + column)
            with forward_ad.dual_level(), torch.set_grad_enabled(turn < 2):
                if turn % 2 == 0:
                    plain.mul_(forward_ad.make_dual(x, t))
                    total = row + column
                else:
                    row.add_(forward_ad.make_dual(x, t)[0])
                    total = plain + x
                value, tangent = forward_ad.unpack_dual(total)
                seen += [value, tangent]
        return seen

    agree(program, device)


def test_versions_of_what_is_written(device: str) -> None:
    def program(where: str) -> list[Any]:
        x, y = numbers(3, 3).to(where), numbers(3, seed=1).to(where)
        seen: list[Any] = []
        for _ in range(TIMES):
            x.mul_(2).add_(y)
            x[1].sub_(y)
            x.exp()
            seen += [x._version, x[0]._version, y._version, x.clone()]
        return seen

    agree(program, device)


def test_a_write_that_a_backward_pass_needs_is_found(device: str) -> None:
    for _ in range(TIMES):
        x, y = (numbers(3, seed=seed).to(device) for seed in range(2))
        product = x.requires_grad_() * y
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_inference_tensors_cannot_be_written_outside(device: str) -> None:
    with torch.inference_mode():
        made_inside = numbers(3).to(device) + 1
    y = numbers(3, seed=1).to(device)
    for _ in range(TIMES):
        numbers(3).to(device).add_(y)
        with pytest.raises(RuntimeError, match="inference tensor"):
            made_inside.add_(y)
    agree(lambda where: numbers(3).to(where) + 1 + y.to(where), device)


def test_modes_see_every_call(device: str) -> None:
    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def program(where: str) -> list[Any]:
        x, y = numbers(3).to(where), numbers(3, seed=1).to(where)
        seen: list[Any] = []
        for _ in range(TIMES):
            seen.append((x + y).mul_(y))
            with Names() as mode:
                seen.append((x + y).mul_(y))
            seen.append(mode.names)
        return seen

    agree(program, device)


def test_lazy_conjugates_and_negatives(device: str) -> None:
    def program(where: str) -> list[Any]:
        x = torch.complex(numbers(3, 3), numbers(3, 3, seed=1)).to(where)
        seen: list[Any] = []
        for _ in range(TIMES):
            for y in (x, x.conj(), x.T):
                seen += [x * y, y.is_conj(), y.imag * x.real, y.imag.is_neg()]
        return seen

    agree(program, device)
