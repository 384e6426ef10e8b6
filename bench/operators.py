"""Steps of one or a few operators. Each step gives the same result."""

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.sides import Side, Step

ADDS = 100
ROWS, COLUMNS = 4096, 1024
MATRICES, MATRICES_ON_GPU = 1024, 4096


def adds(side: Side) -> Step:
    x, y = (torch.randn(16, 16).to(side.device) for _ in range(2))

    def step() -> Tensor:
        total = x
        for _ in range(ADDS):
            total = total + y
        return total

    return side.compiled(step)


def chain(side: Side) -> Step:
    x = torch.randn(16 * 2**20).to(side.device)
    return side.compiled(lambda: ((x * x + x).tanh() * 0.5 - x).abs())


def gelu_bias(side: Side) -> Step:
    x, bias = _matrix(side), torch.randn(COLUMNS).to(side.device)
    return side.compiled(lambda: F.gelu(x + bias))


def softmax(side: Side) -> Step:
    x = _matrix(side)
    return side.compiled(lambda: x.softmax(1))


def layer_norm(side: Side) -> Step:
    x = _matrix(side)
    weight, bias = (torch.randn(COLUMNS).to(side.device) for _ in range(2))
    return side.compiled(lambda: F.layer_norm(x, (COLUMNS,), weight, bias))


def rms_norm(side: Side) -> Step:
    x, residual = _matrix(side), _matrix(side)
    weight = torch.randn(COLUMNS).to(side.device)
    # The sum is wanted too: it goes past the next layer. So it has a place of its own.
    stream = torch.empty_like(x)

    def step() -> Tensor:
        stream.copy_(x + residual)
        return F.rms_norm(stream, (COLUMNS,), weight)

    return side.compiled(step)


def cross_entropy(side: Side) -> Step:
    rows, classes = 512, 32_768
    logits = torch.randn(rows, classes).to(side.device).requires_grad_()
    target = torch.randint(classes, (rows,)).to(side.device)
    loss = side.compiled(lambda: F.cross_entropy(logits, target))

    def step() -> Tensor:
        (gradient,) = torch.autograd.grad(loss(), logits)
        return gradient

    return step


def cholesky(side: Side) -> Step:
    factor = torch.randn(256, 32, 32)
    A = (factor @ factor.mT + 32 * torch.eye(32)).to(side.device)
    b = torch.randn(256, 32, 1).to(side.device)
    return side.compiled(lambda: torch.cholesky_solve(b, torch.linalg.cholesky(A)))


def many_cholesky(side: Side) -> Step:
    A, _ = _many_systems(side)
    return side.compiled(lambda: torch.linalg.cholesky_ex(A).L)


def many_lu(side: Side) -> Step:
    A, _ = _many_systems(side)
    return side.compiled(lambda: torch.linalg.lu_factor_ex(A).LU)


def many_solves(side: Side) -> Step:
    A, b = _many_systems(side)
    return side.compiled(lambda: torch.linalg.solve_ex(A, b).result)


def _many_systems(side: Side) -> tuple[Tensor, Tensor]:
    count = MATRICES_ON_GPU if torch.cuda.is_available() else MATRICES
    factor = torch.randn(count, 32, 32)
    A = (factor @ factor.mT + 32 * torch.eye(32)).to(side.device)
    return A, torch.randn(count, 32, 1).to(side.device)


def _matrix(side: Side) -> Tensor:
    return torch.randn(ROWS, COLUMNS).to(side.device)
