"""Chains of operators by their number, what the CPU makes of them, and comparing.

The CPU is asked twice: on vectors in a row, and on vectors with gaps, where its kernels go one by
one. Where those two differ there is no right answer, and none is asked for. For a device that takes
denormals for 0 it is asked a third time, with zeros in their place.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .operators import CASTS, ELEMENTWISE, INDEXING, INEXACT, REDUCTIONS
from .values import DTYPES, LENGTH, SOURCES, pairs

INNER = {**ELEMENTWISE, **CASTS}
LAST = {**ELEMENTWISE, **CASTS, **REDUCTIONS, **INDEXING, **INEXACT}

UNDEFINED = {
    "a float that no integer of the type is near, as an integer": "C leaves it open, and so do "
    "devices: WGSL says the nearest one; asked everywhere as on x86, which says the lowest one",
    "an integer divided by 0": "raises on the CPU, so no chain has it",
    "the lowest integer divided by -1": "traps on the CPU, so no chain has it",
    "a shift by the width or more": "the CPU's kernels make 0 or the sign of it, and so do we; "
    "chains shift by as much through int32 and int64",
    "sums of floats": "the order is nobody's: of two elements only",
}
"""What is left open, and what of it is asked."""


Memory = tuple[Tensor, Tensor]
Types = tuple[torch.dtype, ...]


@dataclass(frozen=True)
class Chain:
    number: int
    dtype: torch.dtype
    first: str
    second: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.number}: {self.first}, {self.second} {self.dtype}: {' -> '.join(self.steps)}"

    @property
    def is_exact(self) -> bool:
        return self.steps[-1] not in INEXACT

    def on(self, device: str, *, memory: Memory, gaps: bool = False, flushed: Types = ()) -> Tensor:
        x, y = (
            SOURCES[name](one, device)
            for name, one in zip((self.first, self.second), memory, strict=True)
        )
        for step in self.steps:
            x, y = (_with_gaps(x), _with_gaps(y)) if gaps else (x, y)
            x, y = (_flushed(x), _flushed(y)) if x.dtype in flushed else (x, y)
            x = LAST[step](x, y)
            y = y.to(x.dtype)
        return _flushed(x) if x.dtype in flushed else x


def _flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, x * 0, x)


def _with_gaps(x: Tensor) -> Tensor:
    return torch.stack((x, x), -1)[..., 0]


@dataclass(frozen=True)
class Question:
    """A chain, the CPU's answer, and where it is one."""

    chain: Chain
    answer: Tensor
    asked: Tensor


def questions(numbers: range, lacks: Types = (), flushed: Types = ()) -> Iterator[Question]:
    """The chains of these numbers, without those that the CPU raises for."""
    memory = {dtype: pairs(dtype) for dtype in DTYPES}
    for number in numbers:
        for attempt in range(100):
            chain = _chain(random.Random(f"{number} {attempt}"), number, lacks)
            if (question := _asked(chain, memory[chain.dtype], lacks, flushed)) is not None:
                yield question
                break


def _chain(rng: random.Random, number: int, lacks: Types) -> Chain:
    dtype = rng.choice([d for d in DTYPES if d not in lacks])
    first, second = rng.choice(list(SOURCES)), rng.choice(["loaded", *SOURCES])
    inner = [rng.choice(list(INNER)) for _ in range(rng.choice((1, 2)))]
    kind = rng.choice((ELEMENTWISE, CASTS, REDUCTIONS, INDEXING, INEXACT))
    return Chain(number, dtype, first, second, (*inner, rng.choice(list(kind))))


def _asked(chain: Chain, memory: Memory, lacks: Types, flushed: Types) -> Question | None:
    try:
        with warnings.catch_warnings(), _Watched(lacks):
            warnings.simplefilter("ignore")
            answer = chain.on("cpu", memory=memory)
            others = [chain.on("cpu", memory=memory, gaps=True)]
            others += [chain.on("cpu", memory=memory, flushed=flushed)] if flushed else []
    except (RuntimeError, TypeError):  # what PyTorch raises for a type or a value
        return None
    same = [_same(answer, other, exact=chain.is_exact) for other in others]
    return Question(chain, answer, torch.stack(same).all(0))


class _Watched(torch.utils._python_dispatch.TorchDispatchMode):
    """Raises for a type that the device does not have."""

    def __init__(self, lacks: Types) -> None:
        super().__init__()
        self._lacks = lacks

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, Tensor) and one.dtype in self._lacks:
                raise TypeError(f"a {one.dtype}")
        return result


def difference(question: Question, got: Tensor) -> str | None:
    """What a device has made of it, where that is not the CPU's answer."""
    expected = question.answer
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    wrong = question.asked & ~_same(got, expected, exact=question.chain.is_exact)
    if not wrong.any():
        return None
    at = wrong.reshape(-1).nonzero()[:4, 0]
    ours, theirs = (t.reshape(-1)[at].tolist() for t in (got, expected))
    return f"{int(wrong.sum())} of {wrong.numel()} differ, at {at.tolist()}: {ours}, not {theirs}"


_CLOSE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-9}


def _same(a: Tensor, b: Tensor, *, exact: bool) -> Tensor:
    """Element by element: NaN is NaN, a zero has a sign, and all else is equal, or close."""
    if not a.is_floating_point():
        return a == b
    same = (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())
    if not exact:
        wide_a, wide_b = a.double(), b.double()
        small = torch.finfo(a.dtype).tiny * 4
        near = (wide_a - wide_b).abs() <= _CLOSE[a.dtype] * wide_b.abs() + small
        same |= near & (a != 0) & (b != 0) | near & (wide_a.abs() + wide_b.abs() > 0)
    return same


assert LENGTH > 64  # so that vectors and what is left over are both there
