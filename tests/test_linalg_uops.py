"""Factorizations written in UOps, compiled for cpu memory as TORCH_TINY_ENGINE=uop does.

Results are measured against float64 by PyTorch's CPU, beside what its float32 makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_machines import Emulator
from harness import agree_on_error, needs_cpu_memory, needs_tiny, numbers
from torch import Tensor, linalg
from torch.autograd import gradcheck, gradgradcheck

from torch_tiny.engine import cuda
from torch_tiny.lower import linalg as rules
from torch_tiny.lower import spectral
from torch_tiny.uops import buffer_param, dtypes
from torch_tiny.views import int_shape

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("everything_compiled"),
]

Program = Callable[[Tensor], list[Tensor]]


def compiled(program: Callable[..., Any], *given: Tensor) -> Any:
    """The second run: the first one learns what the results look like."""
    moved = [x.to("tiny") for x in given]
    program(*moved)
    results = program(*moved)
    torch.tiny.synchronize()
    return results


def general(*shape: int) -> Tensor:
    """Well conditioned, with distinct singular values."""
    noise = numbers(*shape, dtype=torch.float64) / max(shape[-1], 1) ** 0.5 * 0.3
    diagonal = torch.zeros(shape[-2:], dtype=torch.float64)
    count = min(shape[-2:])
    diagonal[range(count), range(count)] = torch.linspace(1, 3, count, dtype=torch.float64)
    return noise + diagonal


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)


def check(program: Program, x: Tensor, slack: float = 10) -> None:
    """As near to float64 as the CPU's float32 is, shapes, types and strides the CPU's."""
    truth, theirs = program(x), program(x.float())
    ours = compiled(program, x.float())
    for exact, other, mine in zip(truth, theirs, ours, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        assert mine.stride() == other.stride() or 0 in mine.shape
        if not exact.is_floating_point():
            assert torch.equal(mine.cpu(), other)
        elif exact.numel():
            scale = 1e-6 * x.shape[-1] * (1 + exact.abs().max())
            allowed = slack * (other - exact).abs().max() + scale
            assert (mine.cpu() - exact).abs().max() <= allowed


# --- what the factorizations are ---


def triangular_family(x: Tensor) -> list[Tensor]:
    symmetric, right = positive(x), x[..., :3]
    lower = linalg.cholesky_ex(symmetric)
    lu = linalg.lu_factor_ex(x)
    return [
        *lower,
        *linalg.cholesky_ex(symmetric, upper=True),
        torch.cholesky_solve(right, lower[0]),
        torch.cholesky_inverse(lower[0]),
        *lu,
        *linalg.lu(x),
        linalg.lu_solve(*lu[:2], right),
        linalg.lu_solve(*lu[:2], right, adjoint=True),
        linalg.lu_solve(*lu[:2], right.mT, left=False),
        *linalg.solve_ex(x, right),
        *linalg.solve_ex(x, right.mT, left=False),
        linalg.solve_triangular(lower[0], right, upper=False),
        linalg.solve_triangular(x, right, upper=True, unitriangular=True),
        linalg.solve_triangular(lower[0], right.mT, upper=False, left=False),
        *linalg.inv_ex(x),
        linalg.slogdet(x)[0],
        linalg.slogdet(x)[1],
        linalg.det(x / x.shape[-1]) if x.shape[-1] > 20 else linalg.det(x),
    ]


def orthogonal_family(x: Tensor) -> list[Tensor]:
    """Vectors are determined up to their sign: what is built of them is not."""
    values, vectors = linalg.eigh(x[..., : x.shape[-1], :] + x[..., : x.shape[-1], :].mT)
    u, s, vh = linalg.svd(x, full_matrices=False)
    long = linalg.svd(x)
    q, r = linalg.qr(x)
    packed, factors = torch.geqrf(x)
    return [
        q,
        r,
        *linalg.qr(x, "complete"),
        linalg.qr(x, "r")[1],
        packed,
        factors,
        torch.ormqr(packed, factors, x),
        torch.ormqr(packed, factors, x.mT, left=False, transpose=True),
        linalg.householder_product(packed, factors),
        values,
        (vectors * values[..., None, :]) @ vectors.mT,
        vectors.mT @ vectors,
        s,
        (u * s[..., None, :]) @ vh,
        u.mT @ u,
        long[0].mT @ long[0],
        long[2] @ long[2].mT,
    ]


def other_functions(x: Tensor) -> list[Tensor]:
    square = x[..., : x.shape[-1], :]
    return [
        linalg.eigvalsh(square + square.mT),
        linalg.svdvals(x),
        linalg.matrix_exp(square),
        linalg.pinv(x),
        linalg.lstsq(x, x[..., :2] * 2 + 1).solution,
        linalg.matrix_rank(x),
        linalg.cond(x),
        linalg.matrix_norm(x, 2),
        linalg.matrix_norm(x, "nuc"),
        linalg.matrix_power(square, -2),
    ]


def factorizations(x: Tensor) -> list[Tensor]:
    values, vectors = linalg.eigh(x + x.mT)
    u, s, vh = linalg.svd(x)
    return [
        *linalg.cholesky_ex(positive(x)),
        *linalg.lu_factor_ex(x),
        *linalg.solve_ex(x, x[..., :3]),
        *linalg.qr(x),
        values,
        (vectors * values[..., None, :]) @ vectors.mT,
        s,
        (u * s[..., None, :]) @ vh,
    ]


# Batches of 9 and more have a lane of a vector for each matrix, others are done one by one.
SIZES = [
    (1, (17,)),
    (2, (3,)),
    (5, (2, 2)),
    (17, (17,)),
    (32, (9,)),
    (33, ()),
    (64, (9,)),
    (100, ()),
]


@pytest.mark.parametrize(("n", "batch"), SIZES, ids=str)
def test_factorizations(n: int, batch: tuple[int, ...]) -> None:
    check(factorizations, general(*batch, n, n))


@pytest.mark.parametrize(("n", "batch"), [(1, ()), (4, (2, 2)), (17, (9,))], ids=str)
def test_triangular_family(n: int, batch: tuple[int, ...]) -> None:
    check(triangular_family, general(*batch, n, n))


@pytest.mark.parametrize(("n", "batch"), [(3, (2, 2)), (13, (9,))], ids=str)
def test_orthogonal_family(n: int, batch: tuple[int, ...]) -> None:
    check(orthogonal_family, general(*batch, n + 1 + n // 3, n))


@pytest.mark.parametrize(("n", "batch"), [(5, (9,))], ids=str)
def test_other_functions(n: int, batch: tuple[int, ...]) -> None:
    check(other_functions, general(*batch, n + 3, n))


def test_wide_matrices() -> None:
    def program(x: Tensor) -> list[Tensor]:
        u, s, vh = linalg.svd(x, full_matrices=False)
        return [*linalg.qr(x), *linalg.lu(x), s, (u * s[..., None, :]) @ vh, linalg.pinv(x)]

    check(program, general(9, 4, 7))


def test_halves() -> None:
    """Above 128 rows, products of halves do most of the work."""

    def program(x: Tensor) -> list[Tensor]:
        lu = linalg.lu_factor_ex(x)
        right = x[..., :2]
        return [
            *linalg.cholesky_ex(positive(x)),
            *lu,
            *linalg.solve_ex(x, right),
            linalg.lu_solve(*lu[:2], right, adjoint=True),
            linalg.solve_triangular(x, right, upper=True),
        ]

    check(program, general(2, 150, 150))


def test_large() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [
            linalg.cholesky_ex(positive(x))[0],
            linalg.lu_factor_ex(x)[0],
            linalg.solve_ex(x, x[:, :2])[0],
            linalg.qr(x)[1],
        ]

    check(program, general(512, 512))


@pytest.mark.parametrize("shape", [(140, 130), (2, 40, 300)], ids=str)
def test_many_rotations_stay_orthogonal(shape: tuple[int, ...]) -> None:
    """Of the triangle of a tall matrix, and of a transposed wide one."""

    def program(x: Tensor) -> list[Tensor]:
        u, s, vh = linalg.svd(x)
        r = u.shape[-1] - vh.shape[-1]
        small = u[..., : vh.shape[-1]] if r > 0 else u
        built = (small * s[..., None, :]) @ vh[..., : s.shape[-1], :]
        return [s, built, u.mT @ u, vh @ vh.mT, linalg.svdvals(x)]

    check(program, general(*shape), slack=3)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)], ids=str)
def test_nothing(shape: tuple[int, ...]) -> None:
    check(triangular_family, torch.zeros(shape, dtype=torch.float64))
    check(orthogonal_family, torch.zeros(shape, dtype=torch.float64))


def test_types_and_layouts_of_the_arguments() -> None:
    def program(x: Tensor) -> list[Tensor]:
        batch = torch.stack([x, x.mT])
        return [
            linalg.solve(batch, x[0]),
            linalg.solve(x, batch),
            linalg.solve(batch[:, None], batch[None, :, :, :2]),
            linalg.inv(batch.mT),
            linalg.lu_factor(batch.expand(3, 2, 4, 4))[0],
            linalg.solve_triangular(x, batch, upper=False),
            linalg.cholesky(positive(batch).double()),
            linalg.qr(batch.double().mT)[1],
            linalg.inv(batch[:, :3, :3]),
            linalg.solve(batch[:, :2, :2], batch[:, :2, 1:]),
        ]

    check(program, general(4, 4))


@pytest.mark.parametrize(("n", "batch"), [(7, 5), (40, 2), (97, 1)], ids=str)
def test_threads_of_a_gpu(n: int, batch: int, tmp_path: Path) -> None:
    """A warp for each small matrix, a block for each larger one, in an emulation; 97: in blocks."""
    x = general(batch, n, n).float()
    given = buffer_param(0, dtypes.float32, x.numel()).reshape(tuple(x.shape))
    symmetric = given + given.transpose(-1, -2)
    values = [
        *rules.lu_factor(given),
        rules._solve(given, given, True)[0],
        *rules.qr(given, "reduced"),
        spectral.eigh(symmetric, "L", False)[0],
        spectral.svd(given, False, False)[1],
    ]
    shapes = [int_shape(value) for value in values]
    made = [(v.dtype, math.prod(shape)) for v, shape in zip(values, shapes, strict=True)]
    outputs = {1 + i: v.reshape((-1,)) for i, v in enumerate(values)}
    program = cuda.generate([(dtypes.float32, x.numel()), *made], outputs)
    kinds = {dtypes.float32: torch.float32, dtypes.int32: torch.int32}
    memory = [x, *(torch.zeros(size, dtype=kinds[dtype]) for dtype, size in made)]
    machine = Emulator(tmp_path)
    machine.load(program)
    machine.run(program, memory)
    expected = [
        *linalg.lu_factor_ex(x),
        linalg.solve(x, x),
        *linalg.qr(x),
        linalg.eigvalsh(x + x.mT),
        linalg.svdvals(x),
    ]
    for ours, theirs, shape in zip(memory[1:], expected, shapes, strict=True):
        torch.testing.assert_close(ours.reshape(shape), theirs, rtol=1e-4, atol=1e-4)


# --- hard matrices ---


def hilbert(n: int) -> Tensor:
    i = torch.arange(n, dtype=torch.float64)
    return 1 / (i[:, None] + i + 1)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_ill_conditioned(scale: float) -> None:
    """Residuals are small, whatever the condition."""
    a = torch.stack([hilbert(12), hilbert(12).flip(0), general(12, 12)]).float() * scale
    b = torch.ones(3, 12, 1)

    def program(x: Tensor) -> list[Tensor]:
        u, s, vh = linalg.svd(x)
        q, r = linalg.qr(x)
        values, vectors = linalg.eigh((x / scale) @ (x / scale).mT)
        symmetric = (vectors * values[..., None, :]) @ vectors.mT
        return [linalg.solve(x, b.to(x.device) * scale), u, s, vh, q, r, symmetric]

    x, u, s, vh, q, r, symmetric = (y.cpu() for y in compiled(program, a))
    eye = torch.eye(12)
    close = {"rtol": 0, "atol": 2e-5}
    size = a.abs().amax((-2, -1), keepdim=True)
    torch.testing.assert_close((a @ x - b * scale) / size / x.abs().amax(), x * 0, **close)
    torch.testing.assert_close((u * s[..., None, :]) @ vh / size, a / size, **close)
    torch.testing.assert_close(q @ r / size, a / size, **close)
    torch.testing.assert_close(symmetric, (a / scale) @ (a / scale).mT, rtol=0, atol=1e-4)
    for square in (u.mT @ u, vh @ vh.mT, q.mT @ q):
        torch.testing.assert_close(square, eye.expand(3, 12, 12), **close)
    exact = linalg.svdvals((a / scale).double())
    assert (s / scale - exact).abs().max() < 1e-5 * exact.max()


@pytest.mark.parametrize("batch", [3, 20])
def test_deficient_rank(batch: int) -> None:
    """U, V and Q are orthogonal all the same."""
    a = torch.stack([torch.ones(6, 5), torch.zeros(6, 5), torch.eye(6)[:, :5] * 1e-40])
    a = torch.cat([a, numbers(batch - 3, 6, 2) @ numbers(batch - 3, 2, 5, seed=1)])

    def program(x: Tensor) -> list[Tensor]:
        u, s, vh = linalg.svd(x)
        q, r = linalg.qr(x)
        return [u, s, vh, q, r, linalg.matrix_rank(x), linalg.pinv(x)]

    u, s, vh, q, r, rank, pinv = (y.cpu() for y in compiled(program, a))
    for square in (u.mT @ u, vh @ vh.mT, q.mT @ q):
        torch.testing.assert_close(square, torch.eye(square.shape[-1]).expand_as(square))
    torch.testing.assert_close((u[..., :5] * s[..., None, :]) @ vh, a, rtol=0, atol=1e-5)
    torch.testing.assert_close(q @ r, a, rtol=0, atol=1e-5)
    assert torch.equal(rank, linalg.matrix_rank(a))
    some = torch.arange(batch) != 2  # the inverse of 1e-40 is infinite
    torch.testing.assert_close((a @ pinv @ a)[some], a[some], rtol=0, atol=1e-4)


# --- derivatives, which are PyTorch's, of our primitives ---


def rebuilt_eigh(x: Tensor) -> Tensor:
    values, vectors = linalg.eigh(x + x.mT)
    return (vectors * values.exp()[..., None, :]) @ vectors.mT


def rebuilt_svd(x: Tensor) -> Tensor:
    u, s, vh = linalg.svd(x, full_matrices=False)
    return (u * s.sqrt()[..., None, :]) @ vh


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "inv": (linalg.inv, (2, 3, 3)),
    "det": (linalg.det, (2, 3, 3)),
    "slogdet": (lambda x: linalg.slogdet(x)[1], (2, 3, 3)),
    "solve": (lambda x: linalg.solve(x, x[..., :2] + 1), (2, 3, 3)),
    "solve_triangular": (
        lambda x: linalg.solve_triangular(x.tril(), x[..., :2] + 1, upper=False),
        (2, 3, 3),
    ),
    "cholesky": (lambda x: linalg.cholesky(positive(x)), (2, 3, 3)),
    "lu": (lambda x: torch.cat(linalg.lu(x)[1:], -1), (2, 3, 3)),
    "qr": (lambda x: torch.cat(linalg.qr(x), -2), (2, 4, 3)),
    "eigh": (rebuilt_eigh, (2, 3, 3)),
    "svd": (rebuilt_svd, (2, 3, 4)),
    "matrix_exp": (linalg.matrix_exp, (2, 3, 3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str) -> None:
    """First and second, in float64, against finite differences and against the CPU's."""
    function, shape = FUNCTIONS[name]
    x = general(*shape)

    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)

    def program(x: Tensor, weights: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y = function(x)
        (plain,) = torch.autograd.grad((y * y).sum(), x, retain_graph=True)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * weights).sum(), x)
        return [y.detach(), plain, first.detach(), second]

    results = zip(compiled(program, x, weights), program(x, weights), strict=True)
    for ours, theirs in results:
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["solve", "cholesky"])
def test_finite_differences(name: str) -> None:
    function, shape = FUNCTIONS[name]
    x = general(*shape).to("tiny").requires_grad_()
    given = torch.ones_like(function(x)).detach().requires_grad_()
    # The first call of its kind is not compiled, and rounds differently.
    how = {"fast_mode": True, "nondet_tol": 1e-10}
    assert gradcheck(function, (x,), **how)
    assert gradgradcheck(function, (x,), (given,), **how)


# --- bad input ---

ODD = {
    "singular": torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]]),
    "zero": torch.zeros(3, 3),
    "indefinite": torch.diag(torch.tensor([1.0, -2.0, 3.0])),
    "nan": torch.full((3, 3), float("nan")),
    "late": torch.diag(torch.tensor([4.0, 1.0, 0.0])),
}


@pytest.mark.parametrize("batch", [1, 20])
def test_info(batch: int) -> None:
    """Where it broke down, as the CPU says."""
    a = torch.stack([torch.eye(3), *ODD.values()]).repeat(batch, 1, 1)

    def program(x: Tensor) -> list[Tensor]:
        return [
            linalg.cholesky_ex(x)[1],
            linalg.lu_factor_ex(x)[2],
            linalg.inv_ex(x)[1],
            linalg.solve_ex(x, x)[1],
        ]

    for ours, theirs in zip(compiled(program, a), program(a), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (linalg.cholesky, "indefinite"),
        (linalg.cholesky, "nan"),
        (linalg.inv, "singular"),
        (linalg.solve, "zero"),
        (linalg.lu_factor, "late"),
        (linalg.eigh, "nan"),
        (linalg.svd, "nan"),
    ],
)
def test_messages(function: Callable[..., Any], kind: str) -> None:
    """Good data first, so that the code is compiled by the time bad data comes."""
    good, bad = torch.eye(3), ODD[kind]
    given = (lambda x: (x, x)) if function is linalg.solve else (lambda x: (x,))
    for _ in range(2):
        function(*given(good.to("tiny")))
    agree_on_error(lambda where: function(*given(bad.to(where))), "tiny")
    batch = torch.stack([good, bad])
    function(*given(torch.stack([good, good]).to("tiny")))
    agree_on_error(lambda where: function(*given(batch.to(where))), "tiny")
    assert torch.equal(linalg.inv(good.to("tiny")).cpu(), good)


@pytest.mark.parametrize("size", [0.01, 1.0, 8.0])
def test_exponential_is_as_exact_as_the_cpus(size: float) -> None:
    """On average over many matrices; one by one it is chance."""
    x = (numbers(20, 10, 10) * size / 10**0.5).float()
    exact = linalg.matrix_exp(x.double())
    scale = exact.abs().amax((-2, -1), keepdim=True)
    theirs = ((linalg.matrix_exp(x) - exact) / scale).abs().mean()
    ours = ((compiled(linalg.matrix_exp, x).cpu() - exact) / scale).abs().mean()
    assert ours <= theirs
