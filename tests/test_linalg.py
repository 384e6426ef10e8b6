"""Linear algebra: exact gradients of any order, batched, float32 as on the oracle, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import agree, agree_on_error, numbers, only_on_cpu_memory
from torch import Tensor, linalg
from torch.autograd import gradcheck, gradgradcheck
from util import ORACLE, assert_same

Function = Callable[..., Any]


def general(dtype: torch.dtype, *batch: int) -> Tensor:
    """Well conditioned, with distinct singular values."""
    noise = numbers(*batch, 3, 3, dtype=torch.float64)
    return (noise * 0.3 + torch.diag(torch.tensor([1.0, 2.0, 3.5], dtype=torch.float64))).to(dtype)


def wide(dtype: torch.dtype, *batch: int) -> Tensor:
    return torch.cat([general(dtype, *batch), general(dtype, *batch)[..., :1] * 0.3], -1)


def tall(dtype: torch.dtype, *batch: int) -> Tensor:
    return wide(dtype, *batch).mT.contiguous()


def positive(x: Tensor) -> Tensor:
    """Positive definite, and differentiable in every element of x."""
    return x @ x.mH + torch.eye(3, dtype=x.dtype, device=x.device)


def symmetric(x: Tensor) -> Tensor:
    return x + x.mH


def rhs(x: Tensor) -> Tensor:
    return x[..., :2] * 0.5 + 1


def eigh_rebuilt(x: Tensor) -> Tensor:
    """Eigenvectors are determined up to a phase; what is built of them is not."""
    values, vectors = linalg.eigh(symmetric(x))
    return (vectors * values.exp()[..., None, :]) @ vectors.mH


def svd_rebuilt(x: Tensor) -> Tensor:
    u, s, vh = linalg.svd(x, full_matrices=False)
    return (u * s.sqrt()[..., None, :]) @ vh


def qr_squared(x: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of Q are determined up to a phase; the squares of what is in them are not."""
    q, r = linalg.qr(x)
    return (q * q.conj()).real, (r * r.conj()).real


FUNCTIONS: dict[str, tuple[Function, Callable[..., Tensor]]] = {
    "trace": (lambda x: x.diagonal(0, -2, -1).sum(-1), general),
    "inv": (linalg.inv, general),
    "det": (linalg.det, general),
    "slogdet": (lambda x: linalg.slogdet(x)[1], general),
    "logdet": (lambda x: torch.logdet(positive(x)), general),
    "solve": (lambda x: linalg.solve(x, rhs(x)), general),
    "solve_left": (lambda x: linalg.solve(x, rhs(x).mT, left=False), general),
    "solve_ex": (lambda x: linalg.solve_ex(x, rhs(x))[0], general),
    "solve_triangular": (lambda x: linalg.solve_triangular(x.tril(), rhs(x), upper=False), general),
    "solve_triangular_right": (
        lambda x: linalg.solve_triangular(x.triu(), rhs(x).mT, upper=True, left=False),
        general,
    ),
    "cholesky": (lambda x: linalg.cholesky(positive(x)), general),
    "cholesky_solve": (
        lambda x: torch.cholesky_solve(rhs(x), linalg.cholesky(positive(x))),
        general,
    ),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(x.tril()), general),
    "lu_factor": (lambda x: linalg.lu_factor(x)[0], general),
    "lu": (lambda x: linalg.lu(x)[1:], general),
    "lu_solve": (lambda x: linalg.lu_solve(*linalg.lu_factor(x), rhs(x)), general),
    "qr": (qr_squared, tall),
    "eigh": (eigh_rebuilt, general),
    "eigvalsh": (lambda x: linalg.eigvalsh(symmetric(x)), general),
    "svd": (svd_rebuilt, wide),
    "svdvals": (linalg.svdvals, tall),
    "lstsq": (lambda x: linalg.lstsq(x, x[..., :1] ** 2 + 1).solution, tall),
    "pinv": (linalg.pinv, wide),
    "matrix_exp": (linalg.matrix_exp, general),
    "matrix_power": (lambda x: linalg.matrix_power(x, -2), general),
    "nuclear_norm": (lambda x: linalg.matrix_norm(x, "nuc"), general),
    "householder_product": (lambda x: linalg.householder_product(x, x[..., 0, :2] * 0.1), tall),
}


@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batched"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_first_and_second_order(
    name: str, batch: tuple[int, ...], device: str
) -> None:
    function, make = FUNCTIONS[name]
    x = make(torch.float64, *batch).to(device).requires_grad_()
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,), fast_mode=bool(batch))


@pytest.mark.parametrize("name", ["inv", "det", "solve", "cholesky", "eigh", "svd", "qr"])
def test_gradients_of_complex_matrices(name: str, device: str) -> None:
    function, make = FUNCTIONS[name]
    real = make(torch.float64, 2)
    x = torch.complex(real, real.flip(0) * 0.2).to(device).requires_grad_()
    assert gradcheck(function, (x,))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_is_as_exact_as_the_oracle(name: str, batch: tuple[int, ...], device: str) -> None:
    """LAPACK's rounding depends on where the data lies, so both are measured against float64."""
    function, make = FUNCTIONS[name]
    matrix = make(torch.float32, *batch)

    def results(where: str, dtype: torch.dtype) -> list[Tensor]:
        x = matrix.to(where, dtype, copy=True).requires_grad_()
        y = function(x)
        ys = [y] if isinstance(y, Tensor) else list(y)
        ys[0].square().sum().backward()
        return [value.detach() for value in (*ys, x.grad) if value is not None]

    truth = results("cpu", torch.float64)
    oracle = results(ORACLE, torch.float32)
    for _ in range(2):  # learned, then recorded
        for exact, theirs, ours in zip(truth, oracle, results(device, torch.float32), strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            assert ours.stride() == theirs.stride()
            if exact.numel():
                scale = 1e-5 * (1 + exact.abs().max().item())
                allowed = 10 * (theirs.cpu() - exact).abs().max().item() + scale
                assert (ours.cpu() - exact).abs().max().item() <= allowed


def test_third_order_of_the_inverse(device: str) -> None:
    """d3/dx3 of 1/x, as a matrix of one element and inside a larger one."""
    x = torch.tensor(2.0, dtype=torch.float64, device=device, requires_grad=True)
    y = linalg.inv(torch.diag(torch.stack([x, x * 2, x * 4])))[0, 0]
    for _ in range(3):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
    assert y.item() == pytest.approx(-6 / 2.0**4)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (3, 0), (0, 3)], ids=str)
def test_empty_matrices(shape: tuple[int, ...], device: str) -> None:
    def program(where: str) -> Any:
        x = torch.zeros(shape, device=where)
        square = x @ x.mT
        return [
            linalg.svdvals(x),
            linalg.pinv(x),
            linalg.matrix_exp(square),
            linalg.qr(x)[1],
            linalg.inv(x) if shape[-1] == shape[-2] else x,
            linalg.det(x) if shape[-1] == shape[-2] else x,
        ]

    agree(program, device)


def test_whole_factorizations(device: str) -> None:
    """All results with their layout: factorizations give columns that lie side by side."""

    def program(where: str) -> Any:
        x = general(torch.float32, 2).to(where)
        s = symmetric(x)
        return [
            list(linalg.lu_factor_ex(x)),
            list(linalg.lu(x)),
            list(linalg.qr(x, "complete")),
            list(linalg.eigh(s)),
            list(linalg.svd(x)),
            list(linalg.cholesky_ex(positive(x))),
            list(linalg.inv_ex(x)),
            list(linalg.slogdet(x)),
            list(torch.geqrf(x)),
            list(linalg.ldl_factor(s)),
            list(linalg.lstsq(x, x)),
            linalg.matrix_rank(x),
            list(linalg.eig(x)),
            linalg.eigvals(x),
            torch.linalg.cond(x),
        ]

    agree(program, device)


def test_out(device: str) -> None:
    def program(where: str) -> Any:
        x = general(torch.float32, 2).to(where)
        out = torch.zeros(2, 6, 3, device=where)
        linalg.inv(x, out=out[:, ::2])
        info = torch.empty(2, dtype=torch.int32, device=where)
        linalg.cholesky_ex(positive(x), out=(out[:, 1::2], info))
        return [out, info]

    agree(program, device)


def test_info_instead_of_an_error(device: str) -> None:
    def program(where: str) -> Any:
        x = torch.stack([torch.zeros(2, 2), torch.eye(2), -torch.eye(2)]).to(where)
        return [
            linalg.inv_ex(x).info,
            linalg.cholesky_ex(x).info,
            linalg.lu_factor_ex(x).info,
            linalg.solve_ex(x, x).info,
            linalg.det(x),
            linalg.slogdet(x).sign,
        ]

    agree(program, device)


def bad(*rows: list[float]) -> Tensor:
    return torch.stack([torch.eye(2), torch.tensor(rows)])


@pytest.mark.parametrize(
    "program",
    [
        lambda d: linalg.inv(torch.zeros(3, 3, device=d)),
        lambda d: linalg.inv(bad([1, 2], [2, 4]).to(d)),
        lambda d: linalg.solve(torch.ones(2, 2, device=d), torch.ones(2, device=d)),
        lambda d: linalg.cholesky(-torch.eye(2, device=d)),
        lambda d: linalg.cholesky(bad([1, 0], [0, -1]).to(d)),
        lambda d: linalg.lu_factor(torch.zeros(2, 2, device=d)),
        lambda d: linalg.matrix_power(torch.zeros(2, 2, device=d), -1),
        lambda d: linalg.inv_ex(torch.zeros(2, 2, device=d), check_errors=True),
        pytest.param(
            lambda d: linalg.svd(torch.full((2, 2), float("nan"), device=d)),
            marks=only_on_cpu_memory("the SVD of a GPU takes NaN"),
        ),
        lambda d: linalg.inv(torch.zeros(2, 3, device=d)),
        lambda d: linalg.inv(torch.zeros(2, 2, dtype=torch.int64, device=d)),
        lambda d: linalg.inv(torch.zeros(2, 2, dtype=torch.float16, device=d)),
        lambda d: linalg.cholesky(torch.zeros(2, device=d)),
        lambda d: linalg.solve(torch.eye(2, device=d), torch.ones(3, device=d)),
        lambda d: linalg.solve(
            torch.eye(2, device=d), torch.ones(2, dtype=torch.float64, device=d)
        ),
        lambda d: linalg.det(torch.ones(2, 3, device=d)),
        lambda d: torch.eye(2, device=d) @ torch.ones(3, 3, device=d),
        lambda d: torch.eye(2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    ],
)
def test_errors(program: Callable[[str], object], device: str) -> None:
    agree_on_error(program, device)


def test_singular_batch_is_named(device: str) -> None:
    with pytest.raises(linalg.LinAlgError, match=r"Batch element 1"):
        linalg.inv(bad([1, 2], [2, 4]).to(device)).cpu()


def test_products(device: str) -> None:
    def program(where: str) -> Any:
        a, b, v = (numbers(*s).to(where) for s in ((2, 3, 4), (2, 4, 5), (4,)))
        return [
            a @ b,
            a @ v,
            b.mT @ a.mT,
            torch.bmm(a, b),
            torch.einsum("bij,bjk->ik", a, b),
            torch.addmm(torch.ones(5, device=where), a[0], b[0], beta=2, alpha=3),
            torch.baddbmm(torch.ones(3, 5, device=where), a, b),
            torch.outer(v, v),
            v.dot(v),
            linalg.multi_dot([a[0], b[0], b[0].T]),
            torch.kron(a[0], b[0]),
            torch.mv(a[0], v),
            torch.tensordot(a, b, ([2], [1])),
            torch.cdist(a, a),
            linalg.vecdot(a, a),
        ]

    agree(program, device)


def test_the_results_are_right(device: str) -> None:
    """Not only equal to the oracle: the identities that define them hold."""
    x = general(torch.float64, 2).to(device)
    eye = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    q, r = linalg.qr(x)
    low = linalg.cholesky(positive(x))
    for product, expected in (
        (x @ linalg.inv(x), eye),
        (q.mT @ q, eye),
        (q @ r, x.cpu()),
        (low @ low.mT, positive(x.cpu())),
        (x @ linalg.solve(x, x), x.cpu()),
        (linalg.matrix_exp(x) @ linalg.matrix_exp(-x), eye),
    ):
        assert_same(product, expected, strides=False)
