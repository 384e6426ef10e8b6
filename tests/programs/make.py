"""Statements that make tensors, and views of them."""

from __future__ import annotations

import torch
from util import HAS_FLOAT64, PORTABLE, ROUNDS

from .gen import DTYPES, MAX_ELEMENTS, WIDE, Gen, NothingSuitsError, Tensor, kind


@kind(8)
def create(g: Gen) -> str:
    dtype = g.rng.choice(DTYPES)
    shape = g.shape()
    tail = f"dtype=torch.{dtype}, device=device"
    value = g.number(getattr(torch, dtype))
    seed = g.rng.randint(0, 99)
    ways = [
        f"torch.empty({shape}, {tail}).fill_({value})",
        f"torch.zeros({shape}, {tail})",
        f"torch.full({shape}, {value}, {tail})",
        f"torch.ones({shape}, {tail})",
        f"torch.eye({g.rng.randint(1, 4)}, {tail})",
        f"torch.tensor([{value}, {value}], {tail})",
        f"torch.empty_strided((2, 3), (1, 2), {tail}).fill_({value})",
    ]
    if dtype not in ("bool", "complex64"):
        ways += [f"torch.arange({g.rng.randint(1, 12)}, {tail})"]
    ways += [f"seeded({seed}, {shape}, torch.{dtype}).to(device)"] * 8
    expr = g.rng.choice(ways)
    if g.autograd and g.chance(0.6) and dtype not in ("int64", "bool"):
        expr += ".requires_grad_()"
    return g.new(expr)


@kind(2)
def create_like(g: Gen) -> str:
    x, t = g.tensor()
    value = g.number(t.dtype)
    return g.new(
        g.rng.choice(
            (
                f"torch.zeros_like({x})",
                f"torch.full_like({x}, {value})",
                f"{x}.new_ones({g.shape()})",
                f"torch.empty_like({x}).copy_({x})",
                f"{x}.new_tensor([1, 0, 1])",
            )
        )
    )


@kind(2)
def create_then_change_the_source(g: Gen) -> str:
    """What was copied from CPU memory must not see a later write to that memory."""
    seed, shape = g.rng.randint(0, 99), g.shape()
    return f"c = seeded({seed}, {shape}, torch.float32); {g.new('c.to(device) + 1')}; c.zero_()"


@kind(3)
def create_random(g: Gen) -> str:
    if PORTABLE:  # which draws other numbers than the CPU
        raise NothingSuitsError
    seed, shape = g.rng.randint(0, 99), g.shape()
    expr = g.rng.choice(
        (
            f"torch.rand({shape}, device=device)",
            f"torch.randn({shape}, device=device)",
            f"torch.randint(-5, 9, {shape}, device=device)",
            "torch.randperm(6, device=device)",
            f"torch.empty({shape}, device=device).uniform_(-1, 2)",
            f"torch.full({shape}, 0.3, device=device).bernoulli()",
            f"torch.nn.functional.dropout(torch.ones({shape}, device=device), 0.4)",
        )
    )
    return f"seed({seed}); {g.new(expr)}; seed(0)"


@kind(30)
def view(g: Gen) -> str:
    x, t = g.tensor()
    rng, n = g.rng, t.dim()
    ways = [
        lambda: f"{x}.unsqueeze({rng.randint(-n - 1, n)})",
        lambda: f"{x}.squeeze()",
        lambda: f"{x}.flatten()",
        lambda: f"{x}.reshape({_factors(g, t.numel())})",
        lambda: f"{x}.view({_factors(g, t.numel())})",
        lambda: f"{x}.expand({_expanded(g, t)})",
        lambda: f"{x}.detach()",
        lambda: f"{x}.view_as({x})",
        lambda: f"{x}.conj()",
        lambda: f"{x}.real",
        lambda: _as_strided(g, x, t),
        lambda: _as_strided(g, x, t),
        lambda: _dtype_view(g, x, t),
    ]
    if n:
        d, size = g.dim(t), t.size(g.dim(t))
        ways += [
            lambda: f"{x}[{_slices(g, t)}]",
            lambda: f"{x}[{_slices(g, t)}]",
            lambda: f"{x}[..., {rng.randint(0, max(t.size(-1) - 1, 0))}]",
            lambda: f"{x}.select({d}, {rng.randint(-1, max(t.size(d) - 1, 0))})",
            lambda: f"{x}.narrow({d}, {(a := rng.randint(0, t.size(d)))}, {t.size(d) - a})",
            lambda: f"{x}.transpose({d}, {g.dim(t)})",
            lambda: f"{x}.permute({rng.sample(range(n), n)})",
            lambda: f"{x}.movedim({d}, {g.dim(t)})",
            lambda: f"{x}.unfold({d}, {rng.randint(1, max(t.size(d), 1))}, {rng.randint(1, 3)})",
            lambda: f"{x}.squeeze({d})",
            lambda: f"{x}[None, ..., None]",
            lambda: f"{x}.unbind({d})[0]",
            lambda: f"{x}.split({rng.randint(1, size + 1)}, {d})[-1]",
        ]
        if t.size(d) > 1:
            ways.append(lambda: f"{x}.chunk(2, {d})")
    if n >= 2:
        a, b = rng.sample(range(n), 2)
        ways += [
            lambda: f"{x}.diagonal({rng.randint(-3, 3)}, {a}, {b})",
            lambda: f"{x}.diagonal({rng.randint(-1, 1)}, {a}, {b})",
            lambda: f"{x}.mT",
        ]
    if t.is_complex():
        ways += [lambda: f"torch.view_as_real({x})", lambda: f"{x}.imag"] * 2
    expr = rng.choice(ways)()
    return g.new(expr, 2 if ".chunk(2" in expr else 1)


def _factors(g: Gen, numel: int) -> tuple[int, ...]:
    pairs = [(a, numel // a) for a in range(1, numel + 1) if numel % a == 0] or [(0, 3)]
    a, b = g.rng.choice(pairs)
    return g.rng.choice(((a, b), (b, a), (-1, a) if a else (0,), (a, 1, b), (numel,)))


def _expanded(g: Gen, t: Tensor) -> tuple[int, ...]:
    if t.numel() > MAX_ELEMENTS // 2:
        raise NothingSuitsError
    lead = tuple(g.rng.randint(1, 3) for _ in range(g.rng.randint(0, 1)))
    kept = tuple(
        g.rng.choice((-1, 1, 3)) if s == 1 else g.rng.choice((-1, -1, -1, s)) for s in t.shape
    )
    if g.chance(0.03):
        kept = tuple(s + 1 for s in t.shape)
    return lead + kept


def _slices(g: Gen, t: Tensor) -> str:
    parts = []
    for size in t.shape:
        a = g.rng.randint(0, size)
        parts.append(
            g.rng.choice(
                (":", f"{a}:", f":{a}", "::2", f"{a // 2}:{size}:{g.rng.randint(1, 3)}", "-2:")
            )
        )
    return ", ".join(parts)


def _as_strided(g: Gen, x: str, t: Tensor) -> str:
    room = t.untyped_storage().nbytes() // t.element_size()
    if room == 0:
        raise NothingSuitsError
    for _ in range(10):
        dims = g.rng.randint(0, 3)
        size = tuple(g.rng.choice((1, 2, 3)) for _ in range(dims))
        stride = tuple(g.rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(dims))
        span = sum((a - 1) * b for a, b in zip(size, stride, strict=True))
        if span < room:
            return f"{x}.as_strided({size}, {stride}, {g.rng.randint(0, room - 1 - span)})"
    if g.chance(0.1):
        return f"{x}.as_strided((9,), ({room},), 0)"
    raise NothingSuitsError


def _dtype_view(g: Gen, x: str, t: Tensor) -> str:
    if t.is_complex():
        return f"{x}.view(torch.float32)"
    if t.dtype == torch.float32 and g.chance(0.5):
        return f"{x}.view(torch.complex64)"
    rounded = ROUNDS and t.is_floating_point()  # the last bit of a function may differ
    if g.autograd or t.dtype == torch.bool or rounded:
        raise NothingSuitsError
    same = {
        8: ("int64", WIDE if HAS_FLOAT64 else "int64"),
        4: ("int32", "float32"),
        2: ("int16", "bfloat16"),
    }
    return f"{x}.view(torch.{g.rng.choice((*same.get(t.element_size(), ()), 'uint8'))})"
