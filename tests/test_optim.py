"""Every optimizer of torch.optim, single tensor, foreach and fused: five steps as on the oracle."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import agree, numbers, only_on_cpu_memory
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

OPTIMIZERS = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value)
    and issubclass(value, Optimizer)
    and value not in (Optimizer, torch.optim.SparseAdam)  # see test_sparse_quantized.py
)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}, {"capturable": False}],
    "AdamW": [{"amsgrad": True}],
    "SGD": [{"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.5}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "NAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "Adagrad": [{"lr_decay": 0.1}],
    "LBFGS": [{"line_search_fn": "strong_wolfe"}],
}


def cases() -> list[Any]:
    found = []
    for name in OPTIMIZERS:
        accepted = inspect.signature(getattr(torch.optim, name)).parameters
        ways: list[dict[str, Any]] = [{}, *OPTIONS.get(name, [])]
        ways += [
            {way: flag}
            for way in ("foreach", "fused")
            if way in accepted
            for flag in ((True, False) if way == "foreach" else (True,))
        ]
        for way in ways:
            there = name != "Adagrad" or "fused" not in way
            marks = () if there else only_on_cpu_memory("CUDA has no fused Adagrad")
            found.append(pytest.param(name, way, id=f"{name}-{way}", marks=marks))
    return found


def parameters(where: str, name: str) -> list[torch.nn.Parameter]:
    shapes = [(4, 3)] if name == "Muon" else [(4, 3), (3,), ()]
    return [torch.nn.Parameter(numbers(*s, seed=i).to(where)) for i, s in enumerate(shapes)]


def steps(optimizer: Optimizer, params: list[torch.nn.Parameter], count: int = 5) -> list[Tensor]:
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(((p - 0.5) ** 2).sum() + p.sin().sum() for p in params)
        loss.backward()
        return loss

    for _ in range(count):
        losses.append(optimizer.step(closure).detach())
    return losses


@pytest.mark.parametrize(("name", "options"), cases())
def test_five_steps(name: str, options: dict[str, Any], device: str) -> None:
    def program(where: str) -> list[Any]:
        params = parameters(where, name)
        optimizer = getattr(torch.optim, name)(params, lr=0.05, **options)
        losses = steps(optimizer, params)
        state = [
            v
            for s in optimizer.state_dict()["state"].values()
            for v in s.values()
            if isinstance(v, Tensor)
        ]
        return [losses, params, state]

    agree(program, device)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "warmup": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules(name: str, tensor_lr: bool, device: str) -> None:
    def program(where: str) -> list[Any]:
        params = parameters(where, "")
        lr = torch.tensor(0.05) if tensor_lr else 0.05
        optimizer = torch.optim.Adam(params, lr=lr, foreach=not tensor_lr)
        schedule = SCHEDULERS[name](optimizer)
        losses = []
        for _ in range(5):
            losses += steps(optimizer, params, 1)
            schedule.step()
        return [losses, params]

    agree(program, device)


def test_parameter_groups_and_clipping(device: str) -> None:
    def program(where: str) -> list[Any]:
        params = parameters(where, "")
        optimizer = torch.optim.AdamW([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}])
        norms = []
        for _ in range(4):
            optimizer.zero_grad()
            sum((p**3).sum() for p in params).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(params, 0.5))
            torch.nn.utils.clip_grad_value_(params, 0.2)
            optimizer.step()
        return [norms, params]

    agree(program, device)


def test_state_dict_round_trip(device: str) -> None:
    params = parameters(device, "")
    optimizer = torch.optim.Adam(params, lr=0.05)
    steps(optimizer, params, 2)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = torch.optim.Adam(twins, lr=0.05)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [a.item() for a in steps(optimizer, params)] == [b.item() for b in steps(other, twins)]


def test_swa_and_ema(device: str) -> None:
    def program(where: str) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(where)
        mean = torch.optim.swa_utils.AveragedModel(model)
        ema = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            steps(optimizer, list(model.parameters()), 1)
            mean.update_parameters(model)
            ema.update_parameters(model)
        return [list(mean.parameters()), list(ema.parameters())]

    agree(program, device)


def test_optimizer_in_backward(device: str) -> None:
    """A step inside a hook, while the backward pass goes on."""

    def program(where: str) -> list[Any]:
        params = parameters(where, "")
        owners = {p: torch.optim.SGD([p], lr=0.1) for p in params}

        def update(p: Tensor) -> None:
            owners[p].step()
            owners[p].zero_grad()

        for p in params:
            p.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            sum((p**2).sum() for p in params).backward()
        return params

    agree(program, device)
