"""Factorizations of complex matrices in UOps, compiled for cpu memory.

On portable devices test_derivatives_linalg.py has a few of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import agree_on_error, needs_cpu_memory, needs_tiny, numbers
from torch import Tensor, linalg

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("everything_compiled"),
]


def general(*shape: int) -> Tensor:
    made = torch.complex(
        numbers(*shape, dtype=torch.float64), numbers(*shape, dtype=torch.float64, seed=1)
    )
    count = min(shape[-2:])
    made[..., range(count), range(count)] += torch.linspace(1, 3, count, dtype=torch.float64)
    return made


def triangular(x: Tensor) -> list[Tensor]:
    square = x[..., : x.shape[-1], :]
    positive = square @ square.mH + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    right = square[..., :2]
    lower, info = linalg.cholesky_ex(positive)
    lu = linalg.lu_factor_ex(square)
    return [
        lower,
        info,
        linalg.cholesky_ex(positive, upper=True)[0],
        torch.cholesky_solve(right, lower),
        torch.cholesky_inverse(lower),
        *lu,
        *linalg.lu(x),
        linalg.lu_solve(*lu[:2], right),
        linalg.lu_solve(*lu[:2], right, adjoint=True),
        linalg.lu_solve(*lu[:2], right.mT, left=False),
        linalg.solve(square, right),
        linalg.solve(square, right.mT, left=False),
        linalg.solve_triangular(lower, right, upper=False),
        linalg.solve_triangular(square, right.mT, upper=True, left=False, unitriangular=True),
        linalg.inv(square),
        linalg.det(square),
        *linalg.slogdet(square),
    ]


def orthogonal(x: Tensor) -> list[Tensor]:
    """Vectors are determined up to a phase: what is built of them is not."""
    square = x[..., : x.shape[-1], :]
    packed, factors = torch.geqrf(x)
    values, vectors = linalg.eigh(square + square.mH)
    u, s, vh = linalg.svd(x, full_matrices=False)
    long = linalg.svd(x.mT)
    return [
        *linalg.qr(x),
        linalg.qr(x, "complete")[0],
        packed,
        factors,
        linalg.householder_product(packed, factors),
        torch.ormqr(packed, factors, x),
        torch.ormqr(packed, factors, x, transpose=True),
        torch.ormqr(packed, factors, x.mT, left=False),
        values,
        (vectors * values[..., None, :]) @ vectors.mH,
        vectors.mH @ vectors,
        linalg.eigvalsh(square + square.mH, UPLO="U"),
        s,
        (u * s[..., None, :]) @ vh,
        u.mH @ u,
        long[0].mH @ long[0],
        long[2] @ long[2].mH,
        linalg.pinv(x),
    ]


@pytest.mark.parametrize("family", [triangular, orthogonal])
@pytest.mark.parametrize("shape", [(2, 4, 3), (20, 6, 6), (9, 1, 1)], ids=str)
def test_factorizations(family: Callable[[Tensor], list[Tensor]], shape: tuple[int, ...]) -> None:
    """As near to complex128 as the CPU's complex64 is; shapes, types and strides the CPU's."""
    x = general(*shape)
    truth, theirs = family(x), family(x.to(torch.complex64))
    moved = x.to(torch.complex64).to("tiny")
    family(moved)
    for exact, other, mine in zip(truth, theirs, family(moved), strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (other.shape, other.dtype, other.stride())
        if not exact.is_floating_point() and not exact.is_complex():
            assert torch.equal(mine.cpu(), other)
        else:
            allowed = 10 * (other - exact).abs().max() + 1e-5 * (1 + exact.abs().max())
            assert (mine.cpu() - exact).abs().max() <= allowed


def solved(x: Tensor) -> list[Tensor]:
    positive = x @ x.mH + 40 * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    right, lu = x[:, :2], linalg.lu_factor_ex(x)
    lower = linalg.cholesky_ex(positive)[0]
    return [
        lower,
        linalg.cholesky_ex(positive, upper=True)[0],
        torch.cholesky_solve(right, lower),
        *lu,
        linalg.lu_solve(*lu[:2], right),
        linalg.lu_solve(*lu[:2], right.mT, left=False),
    ]


def turned(x: Tensor) -> list[Tensor]:
    packed, factors = torch.geqrf(x)
    ways = [torch.ormqr(packed, factors, x, transpose=way) for way in (False, True)]
    return [*linalg.qr(x), *ways]


@pytest.mark.parametrize(("family", "shape"), [(solved, (140, 140)), (turned, (270, 20))])
def test_large(family: Callable[[Tensor], list[Tensor]], shape: tuple[int, ...]) -> None:
    test_factorizations(family, shape)


@pytest.mark.parametrize("family", [triangular, orthogonal])
def test_in_double(family: Callable[[Tensor], list[Tensor]]) -> None:
    x = general(2, 4, 3)
    moved = x.to("tiny")
    family(moved)
    for theirs, ours in zip(family(x), family(moved), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-10, atol=1e-10)


def test_nothing() -> None:
    x = torch.zeros(2, 0, 0, dtype=torch.complex64)
    for family in (triangular, orthogonal):
        moved = x.to("tiny")
        family(moved)
        for theirs, ours in zip(family(x), family(moved), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("function", [linalg.cholesky, linalg.inv])
def test_messages(function: Callable[[Tensor], Tensor]) -> None:
    good = torch.eye(3, dtype=torch.complex64)
    for _ in range(2):
        function(good.to("tiny"))
    bad = torch.diag(torch.tensor([1, 0, -1], dtype=torch.complex64))
    agree_on_error(lambda where: function(bad.to(where)), "tiny")
