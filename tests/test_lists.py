"""Operators on lists of tensors run part by part on cpu memory, as if on whole lists."""

from collections.abc import Callable

import pytest
import torch
from harness import agree, agree_on_error, needs_cpu_memory, needs_tiny, numbers, synchronize
from torch import Tensor
from util import KIND

PLACES = 24
SIZE = 60_000  # so that a list is many parts
TIMES = 3


def tensors(where: str, seed: int, count: int = PLACES) -> list[Tensor]:
    return [numbers(SIZE + 8 * (i % 3), seed=seed + i).to(where) for i in range(count)]


def update(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]) -> None:
    torch._foreach_lerp_(m, g, 0.1)
    torch._foreach_mul_(v, 0.99)
    torch._foreach_addcmul_(v, g, g, 0.01)
    root = torch._foreach_sqrt(v)
    torch._foreach_div_(root, [1.0 + i for i in range(len(p))])
    torch._foreach_add_(root, 1e-3)
    torch._foreach_addcdiv_(p, m, root, [-0.01 * i for i in range(len(p))])


def test_an_optimizer_by_hand(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        p, g, m = (tensors(where, seed) for seed in (0, 100, 200))
        v = [x.abs() for x in tensors(where, 300)]
        for _ in range(TIMES):
            update(p, g, m, v)
        return p + m + v

    agree(program, device)


def test_temporaries_that_are_kept(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, kept = tensors(where, 0), []
        for _ in range(TIMES):
            twice = torch._foreach_mul(x, 2.0)
            more = torch._foreach_add(twice, x)
            x = torch._foreach_neg(more)
            kept += [twice[3], more[7], *x]
        return kept

    agree(program, device)


def _reversed_views(where: str) -> tuple[list[Tensor], list[Tensor]]:
    whole = numbers(PLACES * SIZE).to(where)
    views = list(whole.split(SIZE))
    return views, views[::-1]


def _same_tensor_twice(where: str) -> tuple[list[Tensor], list[Tensor]]:
    x = tensors(where, 0)
    return [*x, x[0]], [x[5], *x]


def _shifted(where: str) -> tuple[list[Tensor], list[Tensor]]:
    x = [numbers(SIZE, seed=i).to(where) for i in range(PLACES)]
    return x, [*x[1:], x[0]]


@pytest.mark.skipif(KIND == "cuda", reason="one kernel reads and writes the places in any order")
@pytest.mark.parametrize("lists", [_reversed_views, _same_tensor_twice, _shifted])
def test_places_that_share_memory(
    lists: Callable[[str], tuple[list[Tensor], list[Tensor]]], device: str
) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = ([one[:SIZE] for one in some] for some in lists(where))
        for _ in range(TIMES):
            torch._foreach_mul_(x, 0.5)
            torch._foreach_add_(x, y)
            torch._foreach_abs_(y)
        return [*x, *y]

    agree(program, device)


def test_types_that_differ_from_place_to_place(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        types = (torch.float32, torch.int64, torch.float64)
        x = [one.mul(9).to(types[i % 3]) for i, one in enumerate(tensors(where, 0))]
        roots: list[Tensor] = []
        for _ in range(TIMES):
            roots = list(torch._foreach_sqrt(torch._foreach_abs(x)))
            torch._foreach_add_(x, 1)
        return [*x, *roots]

    agree(program, device)


def test_tensors_beside_lists(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, factor = tensors(where, 0), torch.tensor(1.5).to(where)
        results: list[Tensor] = []
        for _ in range(TIMES):
            results += torch._foreach_mul(x, factor)
            torch._foreach_mul_(x, factor)
            torch._foreach_add_(x, factor)
        return [*x, *results]

    agree(program, device)


def _shapes(where: str) -> None:
    x, y = tensors(where, 0), tensors(where, 50)
    y[20] = y[20][:7]
    torch._foreach_add_(x, y)


def _lengths(where: str) -> None:
    torch._foreach_add(tensors(where, 0), tensors(where, 50)[:-1])


def _numbers(where: str) -> None:
    torch._foreach_mul(tensors(where, 0), [2.0] * (PLACES - 1))


@pytest.mark.parametrize("program", [_shapes, _lengths, _numbers])
def test_errors(program: Callable[[str], None], device: str) -> None:
    agree_on_error(program, device)


@needs_tiny
@needs_cpu_memory
def test_a_first_step_has_no_temporary_of_all_parameters(device: str) -> None:
    count, size = 64, 100_000
    p, g, m = ([torch.randn(size).to(device) for _ in range(count)] for _ in range(3))
    v = [torch.rand(size).to(device) for _ in range(count)]
    synchronize(device)
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    update(p, g, m, v)
    synchronize(device)
    assert torch.tiny.max_memory_allocated() - before < count * size * 4 / 2
