"""First and second derivatives of linear algebra on one device, in a process of its own.

    TORCH_TINY_DEVICES=cl TORCH_TINY_FALLBACK=error python tests/derivatives_linalg.py [name ...]

prints a line for each operator and shape. Without names: the operators of BAR with few small
matrices, which is what test_derivatives_linalg.py runs on each kind. With --all: every operator,
more shapes, finite differences in float64 where the device has it, results of matrices of up to
512 rows, and ill-conditioned ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, linalg
from torch.autograd import gradcheck, gradgradcheck

import torch_tiny  # noqa: F401  (registers the device where it is not installed)

Function = Callable[[Tensor], tuple[Tensor, ...]]

COMPLEX = ("inverse", "det", "solve", "cholesky", "lu", "qr", "eigh", "svd")
BAR = ("trace", "inverse", "det", "solve", "cholesky", "lu", "qr", "eigh", "svd")


def symmetric(x: Tensor) -> Tensor:
    return x + x.mH


def positive(x: Tensor) -> Tensor:
    return x @ x.mH + torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)


def rhs(x: Tensor) -> Tensor:
    return x[..., :2] * 0.5 + 1


def eigh(x: Tensor) -> tuple[Tensor, ...]:
    """Vectors are determined up to their sign: what is built of them is not."""
    values, vectors = linalg.eigh(symmetric(x))
    return values, (vectors * (values / 4).exp()[..., None, :]) @ vectors.mH


def svd(x: Tensor) -> tuple[Tensor, ...]:
    u, s, vh = linalg.svd(x, full_matrices=False)
    return s, (u * s.sqrt()[..., None, :]) @ vh


def trace(x: Tensor) -> tuple[Tensor, ...]:
    return (x.trace() if x.ndim == 2 else x.diagonal(0, -2, -1).sum(-1),)


def diagonals(x: Tensor) -> tuple[Tensor, ...]:
    return x.diagonal(1, -2, -1), torch.diag_embed(x[..., 0]), x[..., 0].diag_embed(-1)


@dataclass(frozen=True)
class Case:
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    """Few, small; batches among them."""
    more: tuple[tuple[int, ...], ...] = ((1, 1), (2, 2, 3, 3), (7, 7), (17, 12, 12), (20, 20))


SQUARE = ((2, 3, 3),)
MORE_TALL = ((1, 1), (5, 5), (4, 2), (17, 9, 6), (20, 13))
MORE_WIDE = ((1, 1), (5, 5), (2, 4), (17, 6, 9), (13, 20))

CASES: dict[str, Case] = {
    "trace": Case(trace, ((3, 3), (2, 3, 3))),
    "inverse": Case(lambda x: (linalg.inv(x),), SQUARE),
    "det": Case(lambda x: (linalg.det(x),), SQUARE),
    "solve": Case(lambda x: (linalg.solve(x, rhs(x)),), SQUARE),
    "cholesky": Case(lambda x: (linalg.cholesky(positive(x)),), SQUARE),
    "lu": Case(lambda x: linalg.lu(x)[1:], ((2, 4, 3),), (*MORE_TALL, *MORE_WIDE)),
    "qr": Case(lambda x: linalg.qr(x), ((2, 4, 3),), MORE_TALL),
    "eigh": Case(eigh, SQUARE),
    "svd": Case(svd, ((2, 3, 4),), (*MORE_TALL, *MORE_WIDE)),
    "diagonals": Case(diagonals, SQUARE),
    "slogdet": Case(lambda x: (linalg.slogdet(x)[1],), SQUARE),
    "logdet": Case(lambda x: (torch.logdet(positive(x)),), SQUARE),
    "solve_right": Case(lambda x: (linalg.solve(x, rhs(x).mT, left=False),), SQUARE),
    "solve_triangular": Case(
        lambda x: (linalg.solve_triangular(x.tril(), rhs(x), upper=False),), SQUARE
    ),
    "lu_factor": Case(lambda x: (linalg.lu_factor(x)[0],), SQUARE),
    "lu_solve": Case(lambda x: (linalg.lu_solve(*linalg.lu_factor(x), rhs(x)),), SQUARE),
    "eigvalsh": Case(lambda x: (linalg.eigvalsh(symmetric(x)),), SQUARE),
    "svdvals": Case(lambda x: (linalg.svdvals(x),), ((2, 4, 3),), MORE_TALL),
    "cholesky_solve": Case(
        lambda x: (torch.cholesky_solve(rhs(x), linalg.cholesky(positive(x))),), SQUARE
    ),
    "cholesky_inverse": Case(lambda x: (torch.cholesky_inverse(x.tril()),), SQUARE),
    "householder_product": Case(
        lambda x: (linalg.householder_product(x, x[..., 0, :2] * 0.1),),
        ((2, 4, 3),),
        ((5, 5), (4, 2), (17, 9, 6)),
    ),
    "lstsq": Case(
        lambda x: (linalg.lstsq(x, x[..., :1] ** 2 + 1).solution,), ((2, 4, 3),), MORE_TALL
    ),
    "pinv": Case(lambda x: (linalg.pinv(x),), ((2, 3, 4),), MORE_WIDE),
    "matrix_exp": Case(lambda x: (linalg.matrix_exp(x),), SQUARE),
    "matrix_power": Case(lambda x: (linalg.matrix_power(x, -2),), SQUARE),
    "nuclear_norm": Case(lambda x: (linalg.matrix_norm(x, "nuc"),), SQUARE),
    "spectral_norm": Case(lambda x: (linalg.matrix_norm(x, 2),), SQUARE),
    "cond": Case(lambda x: (linalg.cond(x),), SQUARE),
}


def general(*shape: int) -> Tensor:
    """Well conditioned, with distinct singular values and pivots that do not change places."""
    generator = torch.Generator().manual_seed(sum(shape))
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    rows, columns = shape[-2:]
    diagonal = torch.zeros(rows, columns, dtype=torch.float64)
    count = min(rows, columns)
    diagonal[range(count), range(count)] = torch.linspace(1, 3, count, dtype=torch.float64)
    return noise / max(rows, columns, 1) ** 0.5 * 0.3 + diagonal


def with_phases(x: Tensor) -> Tensor:
    return torch.complex(x, x.flip(-2) * 0.3)


def derivatives(function: Function, x: Tensor) -> list[Tensor]:
    """The values, the gradient of a number made of them, and a product with its Hessian."""
    x = x.detach().requires_grad_()
    results = [y for y in function(x) if y.numel()]
    number = sum((squares(y) for y in results), squares(x) * 0)
    (first,) = torch.autograd.grad(number, x, create_graph=True)
    (second,) = torch.autograd.grad(squares(first + 1), x)
    return [*(y.detach() for y in results), first.detach(), second]


def squares(y: Tensor) -> Tensor:
    size = (y * y.conj()).real if y.is_complex() else y * y
    return (size * weights(y)).sum()


def weights(y: Tensor) -> Tensor:
    """Different for each element, and not symmetric."""
    made = torch.arange(1, y.numel() + 1, dtype=torch.float32).mul(0.7).sin().mul(0.5).add(1)
    return made.reshape(y.shape).to(y.device, y.real.dtype)


def compare(program: Callable[[Tensor], list[Tensor]], x: Tensor) -> None:
    """Nearly as close to float64 as PyTorch's float32 is."""
    single = x.to(torch.complex64 if x.is_complex() else torch.float32)
    truth, theirs = program(x), program(single)
    for _ in range(2):  # learned, then recorded
        ours = [y.cpu() for y in program(single.to("tiny"))]
    for number, (exact, other, mine) in enumerate(zip(truth, theirs, ours, strict=True)):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        if exact.numel():
            plain = (other - exact).abs().max()
            error = (mine - exact).abs().max()
            assert error <= 10 * plain + 1e-5 * (1 + exact.abs().max()), (
                f"result {number} of {len(truth)} is off by {error:.1e}, PyTorch's by {plain:.1e}"
            )


def finite_differences(function: Function, x: Tensor) -> None:
    """Of both orders. The first call of its kind on cpu memory is not compiled, and rounds so."""
    given = x.to("tiny").requires_grad_()
    slope = torch.ones((), dtype=x.dtype, device="tiny", requires_grad=True)
    assert gradcheck(lambda x: sum_of(function, x), (given,), nondet_tol=1e-10)
    assert gradgradcheck(lambda x: sum_of(function, x), (given,), (slope,), nondet_tol=1e-10)


def sum_of(function: Function, x: Tensor) -> Tensor:
    return torch.stack([squares(y) for y in function(x)]).sum()


# --- results, of large and of hard matrices ---


def results(x: Tensor) -> list[Tensor]:
    values, vectors = linalg.eigh(symmetric(x))
    u, s, vh = linalg.svd(x)
    q, r = linalg.qr(x)
    return [
        linalg.cholesky(positive(x)),
        linalg.lu_factor(x)[0],
        linalg.solve(x, rhs(x)),
        linalg.inv(x),
        linalg.slogdet(x)[1],
        q,
        r,
        values,
        (vectors * values[..., None, :]) @ vectors.mH,
        s,
        (u * s[..., None, :]) @ vh,
        u.mH @ u,
    ]


def hard(n: int) -> Tensor:
    """Singular values from 1 down to 1e-12, Hilbert's matrix, and one that is nearly singular."""
    generator = torch.Generator().manual_seed(n)
    u, _, v = linalg.svd(torch.randn(n, n, generator=generator, dtype=torch.float64))
    i = torch.arange(n, dtype=torch.float64)
    near = torch.ones(n, n, dtype=torch.float64) + 1e-5 * torch.eye(n, dtype=torch.float64)
    return torch.stack([(u * torch.logspace(0, -12, n)) @ v, 1 / (i[:, None] + i + 1), near])


def residuals(x: Tensor) -> list[Tensor]:
    """What is small whatever the condition; norms relative to the matrix."""
    values, vectors = linalg.eigh(symmetric(x))
    u, s, vh = linalg.svd(x)
    q, r = linalg.qr(x)
    p, low, up = linalg.lu(x)
    right = x.sum(-1, keepdim=True)
    found = linalg.solve(x, right)
    eye = torch.eye(x.shape[-1], device=x.device)
    factor = linalg.cholesky(x @ x.mT + eye * 1e-3)
    return [
        (vectors * values[..., None, :]) @ vectors.mT - symmetric(x),
        vectors.mT @ vectors - eye,
        (u * s[..., None, :]) @ vh - x,
        u.mT @ u - eye,
        vh @ vh.mT - eye,
        q @ r - x,
        q.mT @ q - eye,
        p @ low @ up - x,
        (x @ found - right) / (1 + found.abs().amax((-2, -1), keepdim=True)),
        factor @ factor.mT - (x @ x.mT + eye * 1e-3),
    ]


def small_residuals(n: int) -> None:
    x = hard(n).float()
    for _ in range(2):
        found = [y.cpu().abs().max().item() for y in residuals(x.to("tiny"))]
    assert max(found) < 2e-6 * n, found
    exact = linalg.svdvals(x.double())
    error = (linalg.svdvals(x.to("tiny")).cpu() - exact).abs().max()
    assert error < 1e-6 * exact.max(), error


def tasks(
    names: list[str], everything: bool, with_results: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    for name in names:
        case = CASES[name]
        for shape in (*case.shapes, *(case.more if everything else ())):
            x, function = general(*shape), case.function
            yield f"{name} {shape}", partial(compare, partial(derivatives, function), x)
        if everything and has_float64():
            x = general(*case.shapes[-1])
            yield f"{name}, finite differences", partial(finite_differences, case.function, x)
        if everything and name in COMPLEX:
            x = with_phases(general(*case.shapes[-1]))
            yield f"{name}, complex", partial(compare, partial(derivatives, case.function), x)
    if with_results:
        yield "complex results", partial(compare, results, with_phases(general(2, 3, 3)))
    if everything and with_results:
        for n in (0, 1, 2, 5, 17, 33, 64, 100, 150, 256, 512):
            yield f"results, n = {n}", partial(compare, results, general(n, n))
        for n in (6, 12, 40):
            yield f"residuals, n = {n}", partial(small_residuals, n)


def has_float64() -> bool:
    try:
        torch.ones(1, dtype=torch.float64, device="tiny")
    except TypeError:
        return False
    return True


def main() -> int:
    everything = "--all" in sys.argv
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    failed = 0
    chosen = names or list(CASES if everything else BAR)
    for about, task in tasks(chosen, everything, not names):
        begin = time.monotonic()
        try:
            task()
            print(f"right {about}, {time.monotonic() - begin:.1f} s", flush=True)
        except Exception as error:
            print(f"WRONG {about}: {type(error).__name__}: {error}"[:600], flush=True)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
