"""Compiled code and data that it was not compiled for: it raises as the CPU does, or goes on.

Each function sees good data until it is compiled, then bad data, then good data again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny
from torch.nn import functional as F
from util import DEVICE, assert_same

pytestmark = [needs_tiny, needs_cpu_memory, pytest.mark.usefixtures("everything_compiled")]

Function = Callable[[torch.Tensor], Any]
Case = tuple[Function, torch.Tensor, list[torch.Tensor]]


def ints(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def ten(index: torch.Tensor) -> torch.Tensor:
    return torch.arange(10.0, device=index.device)


def ones(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=like.device)


def waves(like: torch.Tensor, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(float(count), device=like.device).sin().reshape(shape)


def gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def indexed(function: Function, *, from_end: bool = False) -> Case:
    """Of a function that takes three indices into ten elements."""
    before = ints(-11, 0, 0) if from_end else ints(-1, 0, 0)
    return function, ints(1, 9, 9), [ints(1, 10, 0), before]


INDICES: dict[str, Case] = {
    "embedding": indexed(lambda i: F.embedding(i, ones(i, 10, 2)) * 2),
    "gather": indexed(lambda i: ten(i).gather(0, i) + 1),
    "index": indexed(lambda i: ten(i)[i] + 1, from_end=True),
    "index of two": indexed(lambda i: waves(i, 10, 10)[i, i], from_end=True),
    "take": indexed(lambda i: ten(i).take(i) + 1, from_end=True),
    "take_along_dim": indexed(lambda i: torch.take_along_dim(ten(i), i, 0)),
    "index_select": indexed(lambda i: ten(i).index_select(0, i) + 1),
    "index_add": indexed(lambda i: ten(i).index_add(0, i, ones(i, 3))),
    "index_copy": indexed(lambda i: ten(i).index_copy(0, i, ones(i, 3))),
    "index_fill": indexed(lambda i: ten(i).index_fill(0, i, 3.0), from_end=True),
    "index_reduce": indexed(lambda i: ten(i).index_reduce(0, i, ones(i, 3), "amax")),
    "index_put": indexed(lambda i: ten(i).index_put((i,), ones(i, 3)), from_end=True),
    "index_put, added": indexed(
        lambda i: ten(i).index_put((i,), ones(i, 3), accumulate=True), from_end=True
    ),
    "scatter": indexed(lambda i: ten(i).scatter(0, i, ones(i, 3))),
    "scatter_add": indexed(lambda i: ten(i).scatter_add(0, i, ones(i, 3))),
    "scatter_reduce": indexed(lambda i: ten(i).scatter_reduce(0, i, ones(i, 3), "amax")),
    "put": indexed(lambda i: ten(i).put(i, ones(i, 3)), from_end=True),
    "gradient of index": indexed(
        lambda i: gradient(lambda x: x[i].square().sum(), ten(i)), from_end=True
    ),
    "gradient of gather": indexed(lambda i: gradient(lambda x: x.gather(0, i).sum(), ten(i))),
    "gradient of embedding": indexed(
        lambda i: gradient(lambda x: F.embedding(i, x).square().sum(), ones(i, 10, 2))
    ),
}

LOSSES: dict[str, Case] = {
    "cross_entropy": (
        lambda i: F.cross_entropy(waves(i, 3, 4), i),
        ints(1, 2, -100),
        [ints(1, 4, 0), ints(-1, 0, 0)],
    ),
    "gradient of cross_entropy": (
        lambda i: gradient(lambda x: F.cross_entropy(x, i), waves(i, 3, 4)),
        ints(1, 2, 3),
        [ints(1, -100, 4), ints(-100, -100, -100)],
    ),
    "nll_loss of images": (
        lambda i: F.nll_loss(waves(i, 1, 4, 1, 3), i.reshape(1, 1, 3)),
        ints(1, 2, -100),
        [ints(1, 4, 0), ints(1, -1, 0)],
    ),
    "binary_cross_entropy": (
        lambda p: F.binary_cross_entropy(p, torch.ones_like(p)),
        floats(0.5, 1.0),
        [floats(0.5, 1.5), floats(0.5, torch.nan)],
    ),
    "binary_cross_entropy, its target": (
        lambda y: F.binary_cross_entropy(torch.full_like(y, 0.5), y),
        floats(0.5, 1.0),
        [floats(0.5, 1.5), floats(-0.1, 0.5)],
    ),
    "multi_margin_loss": (
        lambda i: F.multi_margin_loss(waves(i, 1, 4), i),
        ints(1),
        [ints(4), ints(-1)],
    ),
    "multilabel_margin_loss": (
        lambda i: F.multilabel_margin_loss(waves(i, 4), i),
        ints(1, -1, 0, 2),
        [ints(1, -1, 9, 2), ints(-2, 0, 0, 0), ints(3, 1, 2, 0)],
    ),
    "gaussian_nll_loss": (
        lambda v: F.gaussian_nll_loss(ones(v, 2), ones(v, 2), v),
        floats(1.0, 2.0),
        [floats(-1.0, 1.0), floats(0.0, 1.0)],
    ),
}

OTHERS: dict[str, Case] = {
    "integer division": (lambda i: ints(7, -9).to(i.device) // i, ints(2, 4), [ints(0, 3)]),
    "integer remainder": (lambda i: ints(7, -9).to(i.device) % i, ints(2, -4), [ints(0, 3)]),
    "cholesky": (
        lambda a: torch.linalg.cholesky(a) * 2,
        torch.eye(3),
        [-torch.eye(3), torch.eye(3) * torch.nan],
    ),
    "inverse": (lambda a: torch.linalg.inv(a) * 2, torch.eye(3), [torch.zeros(3, 3)]),
    "solve": (lambda a: torch.linalg.solve(a, a), torch.eye(3), [torch.zeros(3, 3)]),
    "lu_unpack": (
        lambda pivots: torch.lu_unpack(torch.eye(3, device=pivots.device), pivots)[0],
        ints(1, 3, 3, dtype=torch.int32),
        [ints(1, 2, 4, dtype=torch.int32), ints(0, 2, 3, dtype=torch.int32)],
    ),
    "max_unpool2d": (  # also of the other channel
        lambda i: F.max_unpool2d(ones(i, 1, 2, 1, 1), i.reshape(1, 2, 1, 1), 2),
        ints(3, 0),
        [ints(4, 0), ints(0, -1)],
    ),
    "max_unpool3d": (
        lambda i: F.max_unpool3d(ones(i, 1, 1, 1, 2), i.reshape(1, 1, 1, 2), (1, 1, 2)),
        ints(0, 2),
        [ints(0, 9), ints(0, -1)],
    ),
    "embedding_bag": (
        lambda i: F.embedding_bag(torch.arange(4, device=i.device), ones(i, 9, 2), i),
        ints(0, 2),
        [ints(0, 7), ints(1, 2)],
    ),
    "histc": (
        lambda x: torch.histc(x, 4),
        floats(1.0, 2.0, 5.0),
        [floats(1.0, torch.inf, 5.0), floats(1.0, torch.nan, 5.0), floats(1.0, 1.0, 1.0)],
    ),
    "searchsorted": (
        lambda i: torch.searchsorted(
            floats(3, 1, 2).to(i.device), floats(2.5).to(i.device), sorter=i
        ),
        ints(1, 2, 0),
        [ints(1, 2, 3), ints(-1, 0, 1)],
    ),
    "masked_scatter": (
        lambda m: ones(m, 4).masked_scatter(m, ones(m, 2) * 3),
        torch.tensor([True, True, False, False]),
        [torch.tensor([True, True, True, False])],
    ),
    "an index far away": (
        lambda i: (ten(i)[i.clamp(-20, 20)] + 1).cumsum(0) * 2,
        ints(0, 1, 2),
        [ints(0, 1, 15)],
    ),
}


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        pytest.param(*case, id=name)
        for table in (INDICES, LOSSES, OTHERS)
        for name, case in table.items()
    ],
)
def test_bad_data_after_good_data(
    function: Function, good: torch.Tensor, bad: list[torch.Tensor]
) -> None:
    wanted = _played(function, good, "cpu")
    assert not isinstance(wanted, str), wanted
    for _ in range(3):
        assert_same(_played(function, good, DEVICE), wanted)
    for data in bad:
        expected = _played(function, data, "cpu")
        for _ in range(2):
            found = _played(function, data, DEVICE)
            if isinstance(expected, str):
                assert isinstance(found, str), f"{data} gives {found}, and not: {expected}"
                assert expected in found
            else:
                assert_same(found, expected)
    assert_same(_played(function, good, DEVICE), wanted)


def _played(function: Function, data: torch.Tensor, device: str) -> Any:
    """What it gives, or the first line of what it raises."""
    try:
        return function(data.to(device)).cpu()
    except (RuntimeError, IndexError, ValueError) as error:
        return str(error).splitlines()[0]


FILLED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "fill": lambda x, value: torch.zeros_like(x).fill_(value),
    "full": lambda x, value: torch.full((2,), value, dtype=x.dtype, device=x.device),
    "full_like": lambda x, value: torch.full_like(x, value),
    "masked_fill": lambda x, value: x.masked_fill(x > 0, value),
    "index_fill": lambda x, value: x.index_fill(0, ints(0).to(x.device), value),
    "scatter": lambda x, value: x.scatter(0, ints(0).to(x.device), value),
    "item": lambda x, value: x.clone().__setitem__(0, value) or x,
}


REAL_BY_CHANCE = (3 + 0j, 3 + 0j, 4 + 0j, 1j, complex(2, torch.nan), 2 + 1j, 3 + 0j, 2.5)
OF_ALL_SIZES = (2.5, 3.5, 3.5, 300.0, torch.nan, 7e4, 1e30, -torch.inf, 2.5, -1.0, 1e300)


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
def test_a_complex_number_for_a_real_tensor(name: str, dtype: torch.dtype) -> None:
    _fill_with(REAL_BY_CHANCE, name, dtype)


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bool]
)
def test_a_number_that_a_type_cannot_hold(name: str, is_complex: bool, dtype: torch.dtype) -> None:
    _fill_with([complex(x) if is_complex else x for x in OF_ALL_SIZES], name, dtype)


def _fill_with(values: Sequence[complex], name: str, dtype: torch.dtype) -> None:
    for value in values:
        given = floats(1.0, -2.0, 3.0).to(dtype)
        expected, found = (
            _played(lambda x: FILLED[name](x, value), given, where)  # noqa: B023
            for where in ("cpu", DEVICE)
        )
        assert type(found) is type(expected), (value, expected, found)
        if isinstance(expected, torch.Tensor):
            assert_same(found, expected)
        else:
            assert expected in found


@pytest.mark.parametrize("name", ["masked_fill", "index_fill"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float16])
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.int64])
def test_a_computed_number_that_a_type_cannot_hold(
    name: str, dtype: torch.dtype, of: torch.dtype
) -> None:
    given = floats(1.0, 2.0, 0.0).to(dtype)
    large = [1e30, torch.nan, torch.inf] if of.is_floating_point else [2**40, -200]

    def filled(value: torch.Tensor) -> torch.Tensor:
        return FILLED[name](given.to(value.device), value + 0)

    for number in (3, 4, 5, 300, *large, -3, 3):
        value = torch.tensor(number, dtype=of)
        expected, found = (_played(filled, value, where) for where in ("cpu", DEVICE))
        if isinstance(expected, torch.Tensor):
            assert_same(found, expected)
        else:
            assert expected in found


def _pairs(x: torch.Tensor, value: Any) -> torch.Tensor:
    return torch._foreach_addcmul([x, x], [x, x], [x, x], [value, 2.0])[0]


WITH_A_NUMBER: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], torch.dtype]] = {
    "huber": (lambda x, v: F.huber_loss(x, x + 1, delta=v), torch.float32),
    "smooth_l1": (lambda x, v: F.smooth_l1_loss(x, x + 1, beta=v), torch.float32),
    "softshrink": (lambda x, v: F.softshrink(x, v), torch.float32),
    "logit": (lambda x, v: torch.logit(x, v), torch.float32),
    "cdist": (lambda x, v: torch.cdist(x.view(-1, 2), x.view(-1, 2) + 1, v), torch.float32),
    "renorm": (lambda x, v: x.view(-1, 2).renorm(2, 0, v), torch.float32),
    "histc": (lambda x, v: torch.histc(x, 3, 0.5, v), torch.float32),
    "clamp of integers": (lambda x, v: x.clamp(v, v), torch.int8),
    "clamp of bools": (lambda x, v: x.clamp_min(v), torch.bool),
    "list of integers": (lambda x, v: torch._foreach_clamp_min([x], v)[0], torch.int8),
    "list of numbers": (_pairs, torch.int8),
    "list of numbers for floats": (_pairs, torch.float32),
    "list of two types": (lambda x, v: torch._foreach_clamp_min([x.double(), x], v)[1], torch.half),
    "norm of nothing": (lambda x, v: torch.linalg.vector_norm(x[:0] + 1, v), torch.float32),
    "old norm of nothing": (lambda x, v: torch.norm(x[:0] + 1, v), torch.float32),
    "distance of nothing": (lambda x, v: torch.dist(x[:0] + 1, x[:0], v), torch.float32),
    "norms of nothing": (lambda x, v: torch._foreach_norm([x[:0] + 1], v)[0], torch.float32),
    "std": (lambda x, v: x.std(correction=v), torch.float32),
}
INTEGERS_IN_LISTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "pow": lambda x, n: torch._foreach_pow([x], [min(n, 63)])[0],
    "addcmul": lambda x, n: torch._foreach_addcmul([x], [x], [x], [n])[0],
    "clamp_min": lambda x, n: torch._foreach_clamp_min([x], [n])[0],
}
# What is seen again is compiled: some come twice.
ODD = (
    *(0.6, 0.7, 0.75, 3.5, -1.5, torch.nan, 0.9, 1.0, 300.0, 1e40, -1e40, torch.inf, 0.6, 0.25),
    *(-1.5, torch.nan, torch.nan, 1.0, 7e4, 0.6),
)


@pytest.mark.parametrize("name", WITH_A_NUMBER)
def test_a_number_that_comes_with_a_call(name: str) -> None:
    function, dtype = WITH_A_NUMBER[name]
    given = torch.linspace(0, 1, 12).mul(4 if name != "logit" else 1).to(dtype)
    for number in ODD:
        expected, found = (
            _played(lambda x: function(x, number), given, where)  # noqa: B023
            for where in ("cpu", DEVICE)
        )
        if isinstance(expected, torch.Tensor):
            assert isinstance(found, torch.Tensor), (number, found)
            assert_same(found, expected)
        else:
            assert isinstance(found, str), (number, expected, found)
            assert expected in found


@pytest.mark.parametrize("name", INTEGERS_IN_LISTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_an_integer_that_comes_in_a_list(name: str, dtype: torch.dtype) -> None:
    for number in (2, 3, 3, -2, 300, 2, 3, -1):
        expected, found = (
            _played(lambda x: INTEGERS_IN_LISTS[name](x, number), ints(1, 2, 3, dtype=dtype), where)  # noqa: B023
            for where in ("cpu", DEVICE)
        )
        assert type(found) is type(expected), (number, expected, found)
        if isinstance(expected, torch.Tensor):
            assert_same(found, expected)
        else:
            assert expected in found


EXPONENTS = (
    0.0,
    2.5,
    -1.5,
    1j,
    2 + 1j,
    -2 + 1j,
    0.5 + 1j,
    *(complex(torch.nan, im) for im in (0, 1)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("kind", ["number", "tensor", "list"])
def test_complex_powers_of_zero(dtype: torch.dtype, kind: str) -> None:
    infinite = [complex(re, im) for re in (0.0, 2.5, -1.5) for im in (torch.inf, -torch.inf)]
    base = torch.tensor([0.0, 1.0, 2.0] * 4).to(dtype)
    for exponent in (*EXPONENTS, *EXPONENTS, *infinite):  # what is seen again is compiled
        powers = torch.full((12,), exponent, dtype=torch.complex64)

        def raised(x: torch.Tensor) -> torch.Tensor:
            if kind == "list":
                return torch._foreach_pow([x], exponent)[0]  # noqa: B023
            return x ** (powers.to(x.device) if kind == "tensor" else exponent)  # noqa: B023

        expected, found = (_played(raised, base, where) for where in ("cpu", DEVICE))
        assert_same(found, expected)


def test_a_complex_factor_for_real_numbers_that_are_added() -> None:
    given = torch.linspace(0, 1, 12)
    for factor in (1 + 0j, 2 + 0j, 3 + 0j, 4 + 0j, 1j):

        def added(x: torch.Tensor) -> torch.Tensor:
            return x.index_add(0, ints(1).to(x.device), x[:1] + 1, alpha=factor)  # noqa: B023

        expected, found = (_played(added, given, where) for where in ("cpu", DEVICE))
        if isinstance(expected, torch.Tensor):
            assert_same(found, expected)
        else:
            assert expected in found
