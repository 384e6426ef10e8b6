"""torch.func: vmap, grad, jvp, vjp, jacrev, jacfwd, hessian, functional_call, and their mixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import agree, agree_on_error, numbers
from torch import Tensor
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)


def f(x: Tensor) -> Tensor:
    return (x.sin() * x.roll(1, -1)).cumsum(-1)


def loss(w: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(x @ w).square().sum()


VMAPS: dict[str, Callable[..., Tensor]] = {
    "arithmetic": lambda x, y: x * 2 + y.exp(),
    "reduction": lambda x, y: (x - y).sum() + x.amax(),
    "matmul": lambda x, y: torch.outer(x, y) @ x,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "softmax": lambda x, y: torch.softmax(x + y, 0),
    "index": lambda x, y: x[1:] * y[:-1],
    "gather": lambda x, y: x.gather(0, y.argsort()),
    "in_place": lambda x, y: x.clone().add_(y).mul_(2),
    "cat": lambda x, y: torch.cat([x, y]).flip(0),
    "new_tensor": lambda x, y: torch.zeros_like(x).copy_(y) + x.new_ones(3),
    "sort": lambda x, y: x.sort().values * y.cumsum(0),
    "inverse": lambda x, y: torch.linalg.inv(torch.diag(x.exp()) + torch.outer(y, y)),
    "no_batching_rule": lambda x, y: torch.linalg.matrix_exp(torch.outer(x, y)),
    "conv": lambda x, y: torch.nn.functional.conv1d(x[None, None], y[None, None, :2]),
    "layer_norm": lambda x, y: torch.nn.functional.layer_norm(x, (3,)) * y,
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name: str, device: str) -> None:
    def program(where: str) -> Tensor:
        x, y = numbers(4, 3).to(where), numbers(4, 3, seed=1).to(where)
        return vmap(VMAPS[name])(x, y)

    agree(program, device)


@pytest.mark.parametrize(("in_dims", "out_dims"), [((0, None), 0), ((1, 0), 1), ((-1, 0), -1)])
def test_vmap_dimensions(in_dims: Any, out_dims: int, device: str) -> None:
    def program(where: str) -> Tensor:
        x = numbers(3, 3).to(where)
        y = numbers(3, 3, seed=1).to(where)
        return vmap(lambda a, b: a @ b if b.dim() == 2 else a * b, in_dims, out_dims)(x, y)

    agree(program, device)


def test_nested_vmap_and_chunks(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = numbers(5, 3).to(where), numbers(4, 3, seed=1).to(where)
        pairs = vmap(vmap(torch.dot, (None, 0)), (0, None))(x, y)
        return [pairs, vmap(f, chunk_size=2)(x)]

    agree(program, device)


def test_grad(device: str) -> None:
    def program(where: str) -> list[Any]:
        w, x = numbers(3, 2).to(where), numbers(4, 3, seed=1).to(where)
        second = grad(lambda w: grad(loss)(w, x).square().sum())(w)
        value, aux = grad(lambda w: (loss(w, x), w.sum()), has_aux=True)(w)
        return [
            grad(loss)(w, x),
            second,
            list(grad_and_value(loss)(w, x)),
            value,
            aux,
            list(grad(loss, argnums=(0, 1))(w, x)),
        ]

    agree(program, device)


def test_per_sample_gradients(device: str) -> None:
    def program(where: str) -> Tensor:
        w, x = numbers(3, 2).to(where), numbers(4, 3, seed=1).to(where)
        return vmap(grad(loss), (None, 0))(w, x)

    agree(program, device)


def test_jvp_and_vjp(device: str) -> None:
    def program(where: str) -> list[Any]:
        x, t = numbers(3).to(where), numbers(3, seed=1).to(where)
        value, pull = vjp(f, x)
        out, push = linearize(f, x)
        return [
            list(jvp(f, (x,), (t,))),
            value,
            pull(t)[0],
            out,
            push(t),
            jvp(grad(lambda x: f(x).sum()), (x,), (t,))[1],
        ]

    agree(program, device)


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(jacobian: Callable[..., Any], device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, batch = numbers(3).to(where), numbers(4, 3).to(where)
        return [
            jacobian(f)(x),
            vmap(jacobian(f))(batch),
            jacobian(jacobian(f))(x),
            jacobian(torch.linalg.inv)(torch.eye(2, device=where) * 2),
        ]

    agree(program, device, strides=False)


def test_hessian(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(4).to(where)
        return [
            hessian(lambda x: f(x).prod())(x),
            jacrev(jacfwd(lambda x: f(x).sum()))(x),
            jacfwd(jacrev(lambda x: x.norm()))(x),
        ]

    agree(program, device, strides=False)


def test_functional_call(device: str) -> None:
    def program(where: str) -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        net.to(where)
        params = dict(net.named_parameters())
        x = numbers(5, 3).to(where)

        def objective(params: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(net, params, (x,)).square().mean()

        per_sample = vmap(grad(objective), (None, 0))(params, x)
        return [grad(objective)(params, x), per_sample]

    agree(program, device)


def test_ensembles(device: str) -> None:
    def program(where: str) -> Tensor:
        torch.manual_seed(0)
        nets = [torch.nn.Linear(3, 2).to(where) for _ in range(3)]
        params, buffers = stack_module_state(nets)
        skeleton = torch.nn.Linear(3, 2, device="meta")

        def call(params: Any, buffers: Any, x: Tensor) -> Tensor:
            return functional_call(skeleton, (params, buffers), (x,))

        return vmap(call, (0, 0, None))(params, buffers, numbers(4, 3).to(where))

    agree(program, device)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_randomness_in_vmap(randomness: str, device: str) -> None:
    torch.manual_seed(0)
    x = torch.zeros(4, 50, device=device)
    y = vmap(lambda t: t + torch.rand(50, device=device), randomness=randomness)(x)
    assert y[0].equal(y[1]) == (randomness == "same")


@pytest.mark.parametrize(
    "program",
    [
        lambda d: vmap(lambda x: x.item())(torch.ones(3, device=d)),
        lambda d: vmap(lambda x: x + torch.rand(1, device=d))(torch.ones(3, device=d)),
        lambda d: vmap(lambda x, y: x + y)(torch.ones(3, device=d), torch.ones(4, device=d)),
        lambda d: grad(lambda x: x * 2)(torch.ones(3, device=d)),
        lambda d: vmap(torch.nonzero)(torch.ones(3, 2, device=d)),
    ],
)
def test_errors(program: Callable[[str], object], device: str) -> None:
    agree_on_error(program, device)
