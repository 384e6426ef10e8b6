"""Bad input fails as on the oracle, and the device stays usable with every tensor intact."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from harness import agree, agree_on_error, needs_tiny, no_device_asserts, numbers, synchronize
from torch import Tensor
from torch.nn import functional as F
from util import assert_same

Program = Callable[[str], object]


def ints(*values: int, device: str) -> Tensor:
    return torch.tensor(values, device=device)


SHAPES_AND_DTYPES: dict[str, Program] = {
    "add_shapes": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "matmul_shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul_dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d).long(),
    "cat_shapes": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
    "stack_shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "inplace_cast": lambda d: torch.ones(2, device=d).long().add_(1.5),
    "inplace_broadcast": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "copy_to_nothing": lambda d: torch.empty(0, device=d).copy_(torch.ones(3, device=d)),
    "copy_to_no_rows": lambda d: torch.empty(2, 0, device=d).copy_(torch.ones(2, 3, device=d)),
    "copy_to_fewer_of_none": lambda d: torch.empty(1, 0, device=d).copy_(torch.ones(5, 0)),
    "copy_from_the_cpu_to_nothing": lambda d: torch.empty(0, device=d).copy_(torch.ones(3)),
    "copy_to_nothing_on_the_cpu": lambda d: torch.empty(0).copy_(torch.ones(3, device=d)),
    "out_cast": lambda d: torch.add(torch.ones(2, device=d), 1.5, out=ints(1, 2, device=d)),
    "dimension": lambda d: torch.ones(2, device=d).sum(3),
    "same_dimension_twice": lambda d: torch.ones(2, 2, device=d).sum((0, 0)),
    "python_index": lambda d: torch.ones(2, device=d)[5],
    "too_many_indices": lambda d: torch.ones(2, device=d)[0, 0],
    "index_dtype": lambda d: torch.ones(2, device=d)[torch.ones(1, device=d)],
    "mask_shape": lambda d: torch.ones(2, device=d)[torch.ones(3, device=d) > 0],
    "gather_dtype": lambda d: torch.ones(2, device=d).gather(0, torch.ones(2, device=d)),
    "gather_shape": lambda d: torch.ones(2, 2, device=d).gather(0, ints(0, device=d)),
    "bool_subtract": lambda d: (torch.ones(2, device=d) > 0) - (torch.ones(2, device=d) > 0),
    "bitwise_of_floats": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "float_shift": lambda d: torch.bitwise_left_shift(torch.ones(2, device=d), 1),
    "mean_of_ints": lambda d: ints(1, 2, device=d).mean(),
    "softmax_of_ints": lambda d: ints(1, 2, device=d).softmax(0),
    "max_of_nothing": lambda d: torch.ones(0, device=d).max(),
    "argmax_of_nothing": lambda d: torch.ones(0, 2, device=d).argmax(0),
    "reshape": lambda d: torch.ones(6, device=d).reshape(4, 2),
    "conv_channels": lambda d: F.conv2d(
        torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 4, 3, 3, device=d)
    ),
    "conv_too_small": lambda d: F.conv1d(
        torch.ones(1, 1, 2, device=d), torch.ones(1, 1, 3, device=d)
    ),
    "linear_shapes": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "layer_norm_shape": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "cross_entropy_batch": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), ints(1, device=d)),
    "pool_kernel": lambda d: F.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 3),
    "item_of_many": lambda d: torch.ones(2, device=d).item(),
    "bool_of_many": lambda d: bool(torch.ones(2, device=d)),
    "float_of_nothing": lambda d: float(torch.ones(0, device=d)),
    "negative_size": lambda d: torch.empty(-1, device=d),
    "arange_sign": lambda d: torch.arange(3, 0, 1, device=d),
    "unknown_einsum": lambda d: torch.einsum(
        "ij,jk->ix", torch.ones(2, 2, device=d), torch.ones(2, 2, device=d)
    ),
    "clamp_nothing": lambda d: torch.ones(2, device=d).clamp(),
    "numpy_of_grad": lambda d: torch.ones(2, device=d, requires_grad=True).numpy(),
    "grad_of_ints": lambda d: ints(1, 2, device=d).requires_grad_(),
    "len_of_scalar": lambda d: len(torch.ones((), device=d)),
}

DATA: dict[str, Program] = {
    "index": lambda d: torch.ones(3, device=d)[ints(0, 5, device=d)],
    "index_negative": lambda d: torch.ones(3, device=d)[ints(-4, device=d)],
    "index_put": lambda d: torch.ones(3, device=d).index_put_(
        (ints(3, device=d),), torch.ones(1, device=d)
    ),
    "index_select": lambda d: torch.ones(3, device=d).index_select(0, ints(7, device=d)),
    "gather": lambda d: torch.ones(3, device=d).gather(0, ints(7, device=d)),
    "scatter": lambda d: torch.ones(3, device=d).scatter_(0, ints(7, device=d), 1.0),
    "index_add": lambda d: torch.ones(3, device=d).index_add_(
        0, ints(7, device=d), torch.ones(1, device=d)
    ),
    "take": lambda d: torch.ones(3, device=d).take(ints(3, device=d)),
    "embedding": lambda d: F.embedding(ints(9, device=d), torch.ones(3, 2, device=d)),
    "nll": lambda d: F.nll_loss(torch.ones(2, 3, device=d), ints(0, 5, device=d)),
    "cross_entropy": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), ints(0, 5, device=d)),
    "one_hot": lambda d: F.one_hot(ints(4, device=d), 3),
    "floor_divide": lambda d: ints(1, 2, device=d) // ints(0, 1, device=d),
    "remainder": lambda d: ints(1, 2, device=d) % 0,
    "bernoulli": lambda d: torch.full((2,), 2.0, device=d).bernoulli(),
    "multinomial": lambda d: torch.multinomial(torch.full((2,), -1.0, device=d), 1),
    "inverse": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "cholesky": lambda d: torch.linalg.cholesky(torch.zeros(2, 2, device=d)),
    "solve": lambda d: torch.linalg.solve(torch.zeros(2, 2, device=d), torch.ones(2, device=d)),
    "unsupported": lambda d: torch.ones(2, device=d, dtype=torch.bool).dot(
        torch.ones(2, device=d, dtype=torch.bool)
    ),
    "bincount": lambda d: torch.bincount(ints(-1, device=d)),
    "repeat_interleave": lambda d: torch.ones(2, device=d).repeat_interleave(ints(-1, 2, device=d)),
    "assert_async": lambda d: torch._assert_async(torch.zeros((), device=d)),
    "ctc": lambda d: F.ctc_loss(
        torch.zeros(2, 1, 3, device=d),
        torch.ones(1, 1, device=d).int(),
        ints(9, device=d),
        ints(1, device=d),
    ),
}


# What a GPU finds out on the host, so that its context survives.
FOUND_BY_THE_HOST = ("inverse", "cholesky", "solve", "unsupported", "bincount")
BAD_DATA = [
    pytest.param(name, marks=() if name in FOUND_BY_THE_HOST else no_device_asserts)
    for name in DATA
]


@pytest.mark.parametrize("name", SHAPES_AND_DTYPES)
def test_shapes_and_dtypes(name: str, device: str) -> None:
    agree_on_error(SHAPES_AND_DTYPES[name], device)


@pytest.mark.parametrize("name", BAD_DATA)
def test_values(name: str, device: str) -> None:
    # one_hot checks its input on the CPU alone; elsewhere it is scatter that refuses.
    agree_on_error(DATA[name], device, message=name != "one_hot")


@pytest.mark.parametrize("name", BAD_DATA)
def test_the_device_stays_usable(name: str, device: str) -> None:
    """Work recorded before and after the failing call is done, whenever the error comes."""
    before = numbers(4).to(device)
    kept = before * 2
    with pytest.raises(Exception):  # noqa: B017 (which one is the business of test_values)
        result = DATA[name](device)
        kept.add_(1)
        synchronize(device)
        del result
    was_late = kept._version == 1
    assert_same(before, numbers(4))
    assert_same(kept, numbers(4) * 2 + was_late)
    assert (before + 1).sum().item() == pytest.approx((numbers(4) + 1).sum().item())
    synchronize(device)


@no_device_asserts
def test_an_error_is_raised_once(device: str) -> None:
    with pytest.raises(IndexError):
        torch.ones(3, device=device)[ints(9, device=device)].cpu()
    synchronize(device)
    assert torch.ones(3, device=device).sum().item() == 3


@no_device_asserts
def test_what_fails_leaves_what_the_oracle_leaves(device: str) -> None:
    def program(where: str) -> Tensor:
        x = torch.zeros(3, device=where)
        with pytest.raises(IndexError):
            x.index_put_((ints(0, 7, device=where),), torch.ones(2, device=where))
            synchronize(where)
        return x

    agree(program, device)


@needs_tiny
@no_device_asserts
def test_a_late_error_names_the_operator_and_the_line(device: str) -> None:
    x = torch.ones(3, device=device)
    for index in (1, 9):  # what a call gives is known once it has been seen
        y = x.index_select(0, ints(index, device=device))
        line = inspect.currentframe().f_lineno - 1
    with pytest.raises(IndexError) as error:
        y.cpu()
    assert "aten::index_select" in str(error.value)
    assert f"test_errors.py:{line}" in str(error.value)


@needs_tiny
@no_device_asserts
def test_a_result_that_failed_cannot_be_read(device: str) -> None:
    """Reading it again must not give the numbers of memory that nothing was written to."""
    x = torch.ones(3, device=device)
    for index in (1, 9):
        y = x.index_select(0, ints(index, device=device))
        z = y * 2
    for result in (y, z, y, z):
        with pytest.raises(IndexError):
            result.cpu()
    assert x.tolist() == [1, 1, 1]


@needs_tiny
@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: a + b,
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a.add_(b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: F.linear(a, b),
        lambda a, b: torch._foreach_add_([a], [b]),
        lambda a, b: a.index_add_(0, torch.zeros(2, dtype=torch.int64, device=a.device), b),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_mixed_devices(program: Callable[..., object], swapped: bool, device: str) -> None:
    a, b = torch.ones(2, 2, device=device), torch.ones(2, 2)
    if swapped:
        a, b = b, a
    with pytest.raises(RuntimeError, match="same device"):
        program(a, b)
        synchronize(device)
    assert (a.tolist(), b.tolist()) == ([[1, 1], [1, 1]], [[1, 1], [1, 1]])


def test_what_may_be_mixed(device: str) -> None:
    """Scalars on the CPU mix with every device, and so do indices; as with CUDA."""
    x = torch.arange(4.0, device=device)
    two = torch.tensor(2.0)
    assert (x * two).tolist() == [0, 2, 4, 6]
    assert (two - x).device == x.device
    assert x[torch.tensor([3, 0])].tolist() == [3, 0]
    x[torch.tensor([1, 2])] = two
    assert x.tolist() == [0, 2, 2, 3]
    two.fill_(9)
    assert x.tolist() == [0, 2, 2, 3]


@needs_tiny
@pytest.mark.parametrize(
    "program",
    [
        lambda x, out: torch.nonzero(x, out=out.long()),
        lambda x, out: torch.sum(x, 0, out=out),
        lambda x, out: torch.add(x[0], 1, out=out),
        lambda x, out: out.add_(x[0]),
    ],
)
def test_a_scalar_on_the_cpu_is_not_written(program: Callable[..., object], device: str) -> None:
    """It may be read; as with CUDA."""
    out = torch.tensor(5.0)
    with pytest.raises(RuntimeError, match="same device"):
        program(torch.ones(3, device=device), out)
    assert out.tolist() == 5


def test_a_tensor_on_the_cpu_is_filled_with_a_number_of_the_device(device: str) -> None:
    assert torch.zeros(3).fill_(torch.tensor(2.0, device=device)).tolist() == [2, 2, 2]


def test_a_recorded_scalar_does_not_see_a_later_write(device: str) -> None:
    x, two = torch.ones(2, device=device), torch.tensor(2.0)
    y = x * two
    two.fill_(100)
    assert y.tolist() == [2, 2]


def test_unknown_operator(device: str) -> None:
    with pytest.raises(AttributeError):
        torch.ops.aten.no_such_operator(torch.ones(2, device=device))


@needs_tiny
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(RuntimeError, match="9"):
        torch.ones(2, device=f"{device}:9")
