"""Statements that compute new tensors from old ones."""

from __future__ import annotations

import torch
from util import ROUNDS

from .gen import MAX_ELEMENTS, WIDE, Gen, fits_together, kind, without_residue

_FEW = 8


@kind(14)
def unary(g: Gen) -> str:
    x, t = g.tensor()
    clean = f"torch.nan_to_num({x}.clone(), 1, 2, 3).clamp(-9, 9)"
    sure = without_residue(x, t)
    ways = [
        f"-{x}",
        f"{x}.abs()",
        f"{x}.square()",
        f"{x}.clone()",
        f"{x}.contiguous()",
        f"{x}.to(torch.{WIDE})",
        f"{x}.to(torch.complex64)",
        f"{x}.isnan()",
        f"{x}.to(torch.bfloat16)",
        f"{x} * 2",
        f"1 - {x}",
        f"{sure} != 0",
        f"{sure}.sgn()",
        f"{x}.clone(memory_format=torch.contiguous_format)",
        f"{x}.flip(0)",
        f"{x}.tril()",
        f"{x}.sin()",
        f"{x}.exp()",
        f"{x}.tanh()",
        f"{x}.sigmoid()",
        f"{x} / 3",
        f"{x} ** 2",
    ]
    if not t.is_complex():
        ways += [
            f"{clean}.to(torch.int64)",
            f"{clean}.to(torch.float32)",
            f"{sure} > 0",
            f"{x}.relu()",
            f"{x}.floor()",
            f"torch.where({x} > 0, {x}, 0)",
        ]
    if t.dtype.is_floating_point and t.dim():
        # Far below zero gelu is a difference of nearly equal numbers: every device has its own.
        near = f"{x}.clamp_min(-1)" if ROUNDS else x
        # In bfloat16 the CPU's differences of nearly equal numbers have no digit that is right: it
        # rounds before it subtracts the sum, and norms of equal numbers are not 0 as in float32.
        exact = f"{x}.float()" if ROUNDS and t.dtype == torch.bfloat16 else x
        ways += [
            f"{x}.softmax({g.dim(t)})",
            f"torch.nn.functional.layer_norm({exact}, ({t.size(-1)},))",
            f"torch.nn.functional.gelu({near})",
            f"{exact}.log_softmax(-1)",
        ]
    return g.new(g.rng.choice(ways))


@kind(14)
def binary(g: Gen) -> str:
    x, t = g.tensor()
    y, s = g.tensor(lambda s: fits_together(t, s) or g.chance(0.03))
    ways = [
        f"{x} + {y}",
        f"{x} * {y}",
        f"{x} + {y}",
        f"{x} * {y}",
        f"{x} == {y}",
        f"{x} / {y}",
        f"torch.add({x}, {y}, alpha=2)",
        f"torch.where({x} != 0, {x}, {y})",
    ]
    if torch.bool not in (t.dtype, s.dtype):
        ways.append(f"{x} - {y}")
    if not (t.is_complex() or s.is_complex()):
        ways += [f"torch.maximum({x}, {y})", f"{x} < {y}", f"{x} >= {y}", f"torch.atan2({x}, {y})"]
        ways += [f"{x} // {y}", f"{x} % {y}"]
    return g.new(g.rng.choice(ways))


@kind(12)
def reduce(g: Gen) -> str:
    x, t = g.tensor()
    keep = g.rng.choice(("", ", keepdim=True"))
    sure = without_residue(x, t)
    # The CPU rounds a product of bfloat16s after each factor: of many it is as far from float64.
    rounded = ROUNDS and t.dtype == torch.bfloat16
    if t.dim() == 0 or g.chance(0.3):
        return g.new(
            g.rng.choice(
                (
                    f"{x}.sum()",
                    f"{x}.mean()",
                    f"{sure}.any()",
                    f"{x}.float().prod()" if rounded and t.numel() > _FEW else f"{x}.prod()",
                    f"{sure}.count_nonzero()",
                    f"{x}.norm()",
                )
            )
        )
    d = g.dim(t)
    ways = [
        f"{x}.sum({d}{keep})",
        f"{x}.mean({d}{keep})",
        f"{sure}.all({d}{keep})",
        f"{x}.float().prod({d}{keep})" if rounded and t.size(d) > _FEW else f"{x}.prod({d}{keep})",
        f"{x}.cumsum({d})",
        f"{x}.var({d}{keep})",
        f"{x}.logcumsumexp({d})",
    ]
    if not t.is_complex():
        ways += [f"{x}.amax({d}{keep})", f"{x}.argmin({d}{keep})", f"{x}.logsumexp({d}{keep})"]
        pairs = [f"{x}.sort(dim={d}, stable=True)", f"{x}.max({d}{keep})", f"{x}.cummax({d})"]
        if g.chance(0.4):
            return g.new(g.rng.choice(pairs), 2)
    return g.new(g.rng.choice(ways))


@kind(6)
def multiply(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.dim() > 0 and t.numel() < MAX_ELEMENTS)
    y, s = g.tensor(
        lambda s: (
            s.dim() > 0 and s.numel() < MAX_ELEMENTS and (s.dtype == t.dtype or g.chance(0.05))
        )
    )
    if t.size(-1) == s.size(-2 if s.dim() > 1 else -1):
        return g.new(f"{x} @ {y}")
    return g.new(
        g.rng.choice(
            (
                f"{x} @ {x}.mT" if t.dim() > 1 else f"{x} @ {x}",
                f"torch.einsum('i,j->ij', {x}.flatten()[:4], {y}.flatten()[:4])",
                f"torch.outer({x}.flatten()[:3], {x}.flatten()[:3])",
            )
        )
    )


@kind(7)
def join(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.numel() <= MAX_ELEMENTS // 2)
    y, _ = g.tensor(
        lambda s: (
            s.dim() == t.dim() and s.shape[1:] == t.shape[1:] and s.numel() <= MAX_ELEMENTS // 2
        )
    )
    ways = [
        f"torch.stack([{x}, {x}], {g.rng.randint(0, t.dim())})",
        f"{x}.repeat(2, *{x}.shape)" if t.numel() < 6 else f"{x}.tile(2)",
        f"torch.atleast_2d({x})",
    ]
    if t.dim():
        ways += [
            f"torch.cat([{x}, {y}])",
            f"torch.cat([{x}, {x}.conj()], -1)",
            f"torch.nn.functional.pad({x}, (1, 0))",
            f"{x}.roll(1, 0)",
        ]
    if t.dim() in (1, 2):
        ways += [f"torch.diag({x}, {g.rng.randint(-1, 1)})", f"torch.diag_embed({x})"]
    return g.new(g.rng.choice(ways))


@kind(7)
def select(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    d, seed = g.dim(t), g.rng.randint(0, 99)
    at = f"indices({seed}, {tuple(t.shape)}, {t.size(d)}).to(device)"
    return g.new(
        g.rng.choice(
            (
                f"{x}.gather({d}, {at})",
                f"{x}.take({at}.flatten() % {t.numel()})",
                f"{x}.index_select({d}, torch.tensor([0, {t.size(d) - 1}], device=device))",
                f"{x}[torch.tensor([0, -1])]",
                f"{x}[:, None][[0, 0]]",
                f"{x}[torch.tensor([0], device=device), ..., None]",
            )
        )
    )


@kind(7)
def data_dependent(g: Gen) -> str:
    x, t = g.tensor()
    sure = without_residue(x, t)
    ways = [
        f"{sure}.nonzero()",
        f"{x}[{sure} != 0]",
        f"{x}.masked_select({x} == {x})",
        f"torch.where({sure})[0]" if t.dim() else f"{sure}.nonzero()",
    ]
    # Equal arguments may have results that differ in the last digit, in the CPU's kernels as well.
    if not t.is_complex() and not (ROUNDS and t.is_floating_point()):
        # Without clone its storage may be larger than the result, with leftovers that differ.
        ways += [f"torch.unique({x}).clone()"]
    return g.new(g.rng.choice(ways))
