"""The generator: what a statement may use, and the kinds of statements it chooses from.

A statement is a line of Python over `torch`, `device`, `seeded` and the live tensors. The
generator looks at the oracle's tensors to choose arguments that mostly work, and sometimes not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from util import HAS_FLOAT64, PORTABLE, ROUNDS, overlaps_itself

Tensor = torch.Tensor
WIDE = "float64" if HAS_FLOAT64 else "float32"
DTYPES = ("float32", WIDE, "int64", "bool", "complex64", "bfloat16")
MAX_ELEMENTS = 64


class NothingSuitsError(Exception):
    """No tensor alive suits this kind of statement; choose another."""


class Gen:
    """Writes one statement after another; `env` holds the oracle's tensors by name.

    `gpu` leaves out what a GPU cannot do: show its memory to NumPy, survive a bad index, add up
    floats in a fixed order where several go to one place. Portable devices only lack the first.
    """

    def __init__(self, rng: random.Random, env: dict[str, Any], autograd: bool, gpu: bool) -> None:
        self.rng, self.env, self.autograd, self.gpu = rng, env, autograd, gpu
        self.shows_memory = not (gpu or PORTABLE)
        self.count = 0

    def statement(self) -> str:
        names = self.names()
        if len(names) > 10:
            return f"del {self.rng.choice(names)}"
        while True:
            kind = self.rng.choices(_KINDS, _WEIGHTS)[0]
            try:
                return kind(self)
            except NothingSuitsError:
                pass

    def names(self) -> list[str]:
        return [n for n, v in self.env.items() if n.startswith("t") and isinstance(v, Tensor)]

    def tensor(self, want: Callable[[Tensor], bool] = lambda _: True) -> tuple[str, Tensor]:
        try:
            found = [n for n in self.names() if want(self.env[n])]
        except RuntimeError:  # autograd will not say where a view of several came from
            raise NothingSuitsError from None
        if not found:
            raise NothingSuitsError
        name = self.rng.choice(found)
        return name, self.env[name]

    def new(self, expr: str, outputs: int = 1) -> str:
        names = [f"t{self.count + i}" for i in range(outputs)]
        self.count += outputs
        return f"{', '.join(names)} = {expr}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def shape(self, least: int = 0) -> tuple[int, ...]:
        dims = self.rng.randint(least, 3)
        return tuple(
            self.rng.choice((1, 2, 3, 4, 2, 3, 0 if self.chance(0.1) else 5)) for _ in range(dims)
        )

    def dim(self, t: Tensor) -> int:
        if t.dim() == 0:
            raise NothingSuitsError
        return self.rng.randint(-t.dim(), t.dim() - 1)

    def number(self, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.rng.choice(("True", "False"))
        if dtype.is_complex and self.chance(0.5):
            return self.rng.choice(("1j", "(2-1j)", "0.5"))
        if dtype.is_floating_point or dtype.is_complex:
            return self.rng.choice(("0.5", "2", "-1.25", "0", "1", "3.0"))
        return self.rng.choice(("0", "1", "2", "-3", "7"))

    def target(self, plain: bool = True) -> tuple[str, Tensor]:
        """A tensor to write to; `plain`: the result must not depend on the order of writes."""
        name, t = self.tensor(lambda t: not (t.requires_grad and t.is_leaf) or self.chance(0.1))
        if plain and overlaps_itself(t) and not self.chance(0.1 if 0 in t.stride() else 0):
            raise NothingSuitsError
        return name, t

    def source(self, dst: Tensor, want: Callable[[Tensor], bool] = lambda _: True) -> str:
        """An expression that broadcasts to `dst`, cast to it, and reads nothing it overlaps."""

        def fits(s: Tensor) -> bool:
            return broadcasts(s.shape, dst.shape) and castable(s.dtype, dst.dtype) and want(s)

        name, s = self.tensor(fits)
        if shares_storage(s, dst) and not (
            same_place(s, dst)
            or (self.chance(0.05) and s.dim() and s.is_contiguous() and dst.is_contiguous())
        ):
            return f"{name}.clone()"
        return name


Maker = Callable[[Gen], str]
_KINDS: list[Maker] = []
_WEIGHTS: list[int] = []


def kind(weight: int) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        _KINDS.append(maker)
        _WEIGHTS.append(weight)
        return maker

    return add


def without_residue(x: str, t: Tensor) -> str:
    """`x` with exact zeros on every device: what cancels on the CPU leaves another's last digit."""
    if ROUNDS and (t.is_floating_point() or t.is_complex()):
        return f"torch.where({x}.abs() > 0.001, {x}, 0)"
    return x


# What the generator has to know about tensors


def shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def same_place(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride(), a.storage_offset(), a.is_conj(), a.is_neg()) == (
        b.dtype,
        b.shape,
        b.stride(),
        b.storage_offset(),
        b.is_conj(),
        b.is_neg(),
    )


def broadcasts(src: torch.Size, dst: torch.Size) -> bool:
    return len(src) <= len(dst) and all(
        a in (1, b) for a, b in zip(reversed(src), reversed(dst), strict=False)
    )


def castable(src: torch.dtype, dst: torch.dtype) -> bool:
    """Casts whose result is defined: never a float to an integer, which may be out of range."""
    return torch.can_cast(src, dst)


def fits_together(a: Tensor, b: Tensor) -> bool:
    both = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(x == y or 1 in (x, y) for x, y in both) and a.numel() * b.numel() < 2000
