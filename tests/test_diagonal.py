"""The diagonal family: forward, backward, second order, writes through a diagonal view."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from harness import ROOT, agree, agree_on_error, needs_cpu_memory, needs_tiny, numbers, python
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from util import KIND, assert_same

SHAPES = [(3, 3), (2, 4), (4, 2), (2, 3, 4), (3, 2, 2, 3), (0, 3)]
CASES = [
    (shape, offset, *dims)
    for shape in SHAPES
    for dims in permutations(range(-len(shape), 0), 2)
    for offset in (-5, -1, 0, 1, 2)
]

FAMILY: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "diag_of_matrix": (lambda x: torch.diag(x, 1), (3, 4)),
    "diag_of_vector": (lambda x: torch.diag(x, -1), (3,)),
    "diagonal": (lambda x: x.diagonal(-1, 2, 0), (3, 2, 3)),
    "linalg.diagonal": (lambda x: torch.linalg.diagonal(x, offset=1), (2, 3, 3)),
    "diag_embed": (lambda x: torch.diag_embed(x, 1, 0, 2), (2, 3)),
    "diagflat": (lambda x: torch.diagflat(x, 1), (2, 2)),
    "diagonal_scatter": (lambda x: torch.diagonal_scatter(x, x[0] * 2, 0), (3, 3)),
    "trace": (lambda x: torch.trace(x), (3, 4)),
    "einsum_trace": (lambda x: torch.einsum("bii->b", x), (2, 3, 3)),
    "diagonal_copy": (lambda x: torch.diagonal_copy(x, 1), (3, 3)),
    "tril_triu": (lambda x: x.tril(-1) * 2 + x.triu(1), (2, 3, 3)),
}


@pytest.mark.parametrize(("shape", "offset", "dim1", "dim2"), CASES)
def test_views_and_writes(
    shape: tuple[int, ...], offset: int, dim1: int, dim2: int, device: str
) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(*shape).to(where)
        view = x.diagonal(offset, dim1, dim2)
        copy = view.clone()
        view.mul_(2)
        view[..., :1] = 9
        x.add_(1)
        scattered = torch.diagonal_scatter(x, copy, offset, dim1, dim2)
        named = torch.linalg.diagonal(x, offset=offset, dim1=dim1, dim2=dim2)
        return [x, view, copy, scattered, named]

    agree(program, device)


@pytest.mark.parametrize(
    ("shape", "offset", "dim1", "dim2"), [c for c in CASES if c[0] in ((3, 3), (2, 3, 4))]
)
def test_embedding_is_the_inverse(
    shape: tuple[int, ...], offset: int, dim1: int, dim2: int, device: str
) -> None:
    x = numbers(*shape[1:]).to(device)
    embedded = torch.diag_embed(x, offset, dim1, dim2)
    assert_same(embedded, torch.diag_embed(x.cpu(), offset, dim1, dim2))
    assert embedded.diagonal(offset, dim1, dim2).equal(x)


@pytest.mark.parametrize("offset", range(-4, 5))
@pytest.mark.parametrize("shape", [(3,), (3, 4), (4, 1), (0,)])
def test_diag_and_diagflat(shape: tuple[int, ...], offset: int, device: str) -> None:
    x = numbers(*shape)
    assert_same(torch.diag(x.to(device), offset), torch.diag(x, offset))
    assert_same(torch.diagflat(x.to(device), offset), torch.diagflat(x, offset))


@pytest.mark.parametrize("name", FAMILY)
def test_gradients_of_first_and_second_order(name: str, device: str) -> None:
    function, shape = FAMILY[name]
    x = numbers(*shape, dtype=torch.float64).to(device).requires_grad_()
    assert gradcheck(function, (x,))
    assert gradgradcheck(lambda x: function(x * x), (x,))


@pytest.mark.parametrize("name", FAMILY)
def test_gradients_equal_the_oracle(name: str, device: str) -> None:
    function, shape = FAMILY[name]

    def program(where: str) -> list[Tensor]:
        x = numbers(*shape).to(where).requires_grad_()
        y = function(x.sin())
        (grad,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), x)
        return [y, grad, second]

    agree(program, device)


def test_gradient_through_a_write_to_the_diagonal(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(4, 4).to(where).requires_grad_()
        v = numbers(4, seed=1).to(where).requires_grad_()
        y = x * 2
        y.diagonal().mul_(v)
        y.diagonal(1)[1:].copy_(v[:2])
        (y**2).sum().backward()
        return [y, x.grad, v.grad]

    agree(program, device)


@pytest.mark.parametrize("wrap", [False, True])
def test_fill_diagonal(wrap: bool, device: str) -> None:
    agree(lambda d: torch.zeros(7, 3, device=d).fill_diagonal_(2, wrap), device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = (numbers(3, 3) * 4).to(dtype).to(where)
        x.diagonal().logical_not_()
        results = [x, torch.diag(x), torch.diag_embed(x[0]), torch.diagflat(x)]
        no_trace = (torch.bool,) if KIND == "cpu" else (torch.bool, torch.bfloat16)
        return results if dtype in no_trace else [*results, torch.trace(x)]

    agree(program, device)


@pytest.mark.parametrize(
    "program",
    [
        lambda d: torch.diagonal(torch.ones(3, device=d)),
        lambda d: torch.diag(torch.ones(2, 2, 2, device=d)),
        lambda d: torch.diagonal(torch.ones(2, 2, device=d), 0, 1, 1),
        lambda d: torch.diagonal(torch.ones(2, 2, device=d), 0, 0, 5),
        lambda d: torch.diag_embed(torch.ones(2, device=d), 0, 0, 0),
        lambda d: torch.diagonal_scatter(torch.ones(3, 3, device=d), torch.ones(2, device=d)),
        lambda d: torch.trace(torch.ones(3, device=d)),
        lambda d: torch.ones(3, device=d).fill_diagonal_(1),
    ],
)
def test_errors(program: Callable[[str], object], device: str) -> None:
    agree_on_error(program, device)


@needs_tiny
@needs_cpu_memory
def test_every_call_is_compiled() -> None:
    """All diagonals, their relatives and derivatives; mode `uop` refuses what has no lowering."""
    file = ROOT / "tests" / "compiled_diagonals.py"
    python(
        f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')",
        timeout=600,
        TORCH_TINY_ENGINE="uop",
        TORCH_TINY_CACHE="",
    )
