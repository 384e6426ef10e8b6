"""The diagonal and scatter family, every call compiled: test_diagonal.py runs it in a process."""

import sys
from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor
from torch.autograd import grad

import torch_tiny  # noqa: F401  (registers the device where it is not installed)

SHAPES = [(3, 3), (2, 4), (4, 2), (2, 3, 4), (3, 2, 2, 3), (0, 3)]
OFFSETS = (-5, -1, 0, 1, 2)
Program = Callable[[str], list[Tensor]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_every_diagonal(shape: tuple[int, ...]) -> Program:
    def program(where: str) -> list[Tensor]:
        found = []
        given = numbers(*shape).to(where)
        for dim1, dim2 in permutations(range(-len(shape), 0), 2):
            for offset in OFFSETS if len(shape) < 4 else (0, 1):
                x = given.clone()
                view = x.diagonal(offset, dim1, dim2)
                copy = view.clone()
                view.mul_(2)
                view[..., :1] = 9
                x.add_(1)
                found += [
                    x,
                    copy,
                    torch.diagonal_scatter(x, copy, offset, dim1, dim2),
                    torch.diagonal_copy(x, offset, dim1, dim2),
                    torch.diag_embed(copy, offset, dim1, dim2),
                ]
        return found

    return program


FAMILY: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "diag of a matrix": (lambda x: torch.diag(x, 1), (3, 4)),
    "diag of a vector": (lambda x: torch.diag(x, -1), (3,)),
    "diagonal": (lambda x: x.diagonal(-1, 2, 0), (3, 2, 3)),
    "linalg.diagonal": (lambda x: torch.linalg.diagonal(x, offset=1), (2, 3, 3)),
    "diag_embed": (lambda x: torch.diag_embed(x, 1, 0, 2), (2, 3)),
    "diagflat": (lambda x: torch.diagflat(x, 1), (2, 2)),
    "diagonal_scatter": (lambda x: torch.diagonal_scatter(x, x[0] * 2, 0), (3, 3)),
    "select_scatter": (lambda x: torch.select_scatter(x, x[0] * 2, 0, 2), (3, 3)),
    "slice_scatter": (lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 0, 4, 2), (3, 4)),
    "as_strided_scatter": (
        lambda x: torch.as_strided_scatter(x, x[:2, :2] * 3, (2, 2), (5, 2), 1),
        (3, 4),
    ),
    "block_diag": (lambda x: torch.block_diag(x, x[0], x * 2), (2, 3)),
    "trace": (lambda x: torch.trace(x), (3, 4)),
    "trace by einsum": (lambda x: torch.einsum("bii->b", x), (2, 3, 3)),
    "tril and triu": (lambda x: x.tril(-1) * 2 + x.triu(1), (2, 3, 3)),
    "a write to the diagonal": (lambda x: _written(x), (3, 3)),
    "fill_diagonal_": (lambda x: x.clone().fill_diagonal_(2), (4, 3)),
}


def _written(x: Tensor) -> Tensor:
    y = x * 1
    y.diagonal(1).mul_(x.diagonal(-1))
    return y


def with_gradients(name: str) -> Program:
    """The value, its first and its second derivatives."""
    function, shape = FAMILY[name]

    def program(where: str) -> list[Tensor]:
        x = numbers(*shape).to(where).requires_grad_()
        y = function(x)
        weight = numbers(*y.shape, seed=1).to(where)
        (first,) = grad((y * y * weight).sum(), x, create_graph=True)
        (second,) = grad((first * first).sum(), x)
        return [y.detach(), first.detach(), second]

    return program


PROGRAMS: dict[str, Program] = {
    **{f"every diagonal of {shape}": of_every_diagonal(shape) for shape in SHAPES},
    **{name: with_gradients(name) for name in FAMILY},
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        expected = PROGRAMS[name]("cpu")
        for _ in range(2):  # the first call of each kind runs at once, whatever the engine
            got = [one.cpu() for one in PROGRAMS[name]("tiny")]
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape, name
            torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
        print("ok", name, flush=True)
