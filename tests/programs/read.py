"""Statements that read, forget, fail and differentiate."""

from __future__ import annotations

import torch
from util import ROUNDS

from .gen import Gen, NothingSuitsError, kind


@kind(16)
def read(g: Gen) -> str:
    x, t = g.tensor()
    y, _ = g.tensor()
    ways = [
        f"r = {x}.sum().item()",
        f"r = {x}.detach().cpu()",
        f"r = {x}.detach().resolve_conj().tolist()",
        f"r = bool(({x} == {x}).all())",
        "synchronize()",
        f"r = torch.equal({x}, {y})",
    ]
    # A copy on the CPU of what autograd knows to be zero, without memory, is a tensor with memory.
    if not torch._is_zerotensor(t):
        ways += [f"r = {x}.detach().resolve_conj().cpu().numpy()"]
    if not ROUNDS:  # whose last digit may differ
        ways += [f"r = text({x})"]
    if g.shows_memory:
        ways += [f"r = {x}.detach().resolve_conj().resolve_neg().numpy().copy()"]
    if t.numel() == 1:
        ways += [f"r = {x}.item()", f"r = {x}.detach().item()", f"r = bool({x})"]
    return g.rng.choice(ways)


@kind(5)
def forget(g: Gen) -> str:
    x, _ = g.tensor()
    return f"del {x}"


@kind(3)
def fail(g: Gen) -> str:
    x, _ = g.tensor()
    ways = [
        f"{x}.expand(7, 7, 7, 7)",
        f"{x}.view(-1, 11)",
        f"{x} + torch.ones(11, 1, 7, device=device)[:, :, :6].expand(11, 2, 6)",
        f"{x}.transpose(0, 9)",
        f"{x}[9, 9, 9, 9]",
        f"{x} @ torch.ones(13, 13, device=device)",
        f"torch.cat([{x}[None], torch.ones(3, 3, 3, 3, 3, device=device)])",
        f"{x}.flatten().expand(2, 3).item()",
        "torch.linalg.inv(torch.zeros(2, 2, device=device))",
        "torch.linalg.cholesky(-torch.eye(3, device=device))",
        "torch.ones(2, dtype=torch.int64, device=device) // 0 + torch.ones(2, device=device)",
    ]
    if not g.gpu:
        ways += [
            f"{x}.flatten()[torch.tensor([999], device=device)]",
            f"{x}.flatten().gather(0, torch.tensor([-999], device=device))",
            f"{x}.flatten().index_select(0, torch.tensor([999], device=device))",
        ]
    return g.new(g.rng.choice(ways))


@kind(10)
def differentiate(g: Gen) -> str:
    if not g.autograd:
        raise NothingSuitsError
    x, _ = g.tensor(lambda t: t.requires_grad)
    leaf, _ = g.tensor(lambda t: t.requires_grad and t.is_leaf)
    loss = f"({x} * {x}).sum().abs()"
    return g.rng.choice(
        (
            g.new(
                f"torch.autograd.grad({loss}, [{leaf}], allow_unused=True, retain_graph=True)[0]"
            ),
            g.new(
                f"torch.autograd.grad({loss}, [{leaf}], allow_unused=True, create_graph=True)[0]"
            ),
            f"{loss}.backward(retain_graph=True); {g.new(f'{leaf}.grad')}",
            f"{loss}.backward(); {leaf}.grad = None",
            f"with torch.no_grad(): {leaf}.mul_(0.5)",
            f"{x}.register_hook(lambda grad: grad * 2)",
            f"{x}.retain_grad()",
            f"{x}.requires_grad_()",
            f"{x}.detach_()",
        )
    )
