"""Autocast and GradScaler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import agree, numbers
from torch import Tensor
from torch.nn import functional as F
from util import ORACLE, assert_same


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_which_operators_are_cast(dtype: torch.dtype, device: str) -> None:
    """Products in the small type, what needs range in float32, the rest as it comes."""
    x, w = numbers(4, 4).to(device), numbers(4, 4, seed=1).to(device)
    with torch.autocast(device, dtype):
        assert (x @ w).dtype == dtype
        assert F.linear(x, w).dtype == dtype
        assert F.conv1d(x[None], w[:, :, None]).dtype == dtype
        assert (x + w).dtype == torch.float32
        assert F.mse_loss(x @ w, x).dtype == torch.float32
        assert torch.cat([x @ w, x]).dtype == torch.float32
        assert (x.double() @ w.double()).dtype in (torch.float64, dtype)
        with torch.autocast(device, enabled=False):
            assert (x @ w).dtype == torch.float32
    assert (x @ w).dtype == torch.float32


def test_values_equal_the_oracle(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, w = numbers(8, 4).to(where), numbers(4, 4, seed=1).to(where)
        with torch.autocast(where, torch.bfloat16):
            hidden = torch.relu(x @ w)
            return [hidden, F.linear(hidden, w), torch.bmm(x[None], w[None]), x + w[0]]

    agree(program, device)


def test_the_default_type(device: str) -> None:
    with torch.autocast(device):
        product = torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    assert product.dtype == torch.get_autocast_dtype(device)
    assert product.dtype in (torch.bfloat16, torch.float16)
    assert torch.is_autocast_enabled(device) is False


def test_training_equals_the_oracle(device: str) -> None:
    def program(where: str) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        model.to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for i in range(4):
            optimizer.zero_grad()
            with torch.autocast(where, torch.bfloat16):
                logits = model(numbers(5, 4, seed=i).to(where))
            loss = F.cross_entropy(logits.float(), torch.arange(5, device=where) % 2)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert model[0].weight.grad.dtype == torch.float32
        return losses

    agree(program, device)


def test_weights_are_cast_once(device: str) -> None:
    w = numbers(4, 4).to(device).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = (w @ w) @ w
        (w @ w).sum().backward()
    assert y.dtype == torch.bfloat16
    assert w.grad.dtype == torch.float32


def test_decorator_and_custom_function(device: str) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad @ x.T + x.T @ grad

    @torch.autocast(device, torch.bfloat16)
    def run(x: Tensor) -> Tensor:
        return Product.apply(x @ x)

    x = numbers(3, 3).to(device).requires_grad_()
    y = run(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.float32


def scaled_steps(where: str, bad: int | None) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(where, init_scale=2.0**8, growth_interval=2)
    seen: list[Any] = []
    for i in range(5):
        optimizer.zero_grad()
        loss = model(numbers(3, 4, seed=i).to(where)).square().mean()
        scaler.scale(loss * (float("inf") if i == bad else 1)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen += [scaler.get_scale(), model.weight.detach().clone()]
    return [*seen, scaler.state_dict()]


@pytest.mark.parametrize("bad", [None, 2])
def test_grad_scaler(bad: int | None, device: str) -> None:
    """A step with infinite gradients is left out and halves the scale."""
    expected, got = scaled_steps(ORACLE, bad), scaled_steps(device, bad)
    assert_same(got[:-1], expected[:-1])
    assert got[-1] == expected[-1]
    if bad is not None:
        assert_same(got[2 * bad + 1], got[2 * bad - 1])


def test_fused_optimizer_with_a_scaler(device: str) -> None:
    def program(where: str) -> Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler(where)
        for i in range(3):
            optimizer.zero_grad()
            scaler.scale(model(numbers(3, 4, seed=i).to(where)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight

    agree(program, device)
