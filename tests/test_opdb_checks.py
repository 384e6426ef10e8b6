"""The checks of test_opdb.py themselves: each notices a device that goes wrong in its subject."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from opdb import checks, compare
from opdb.compare import NotApplicable, Outcome, whole
from opdb.samples import Call
from torch import Tensor
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput
from util import ORACLE

DEVICE = f"{ORACLE}:0"  # another name for the oracle: "the device", which goes wrong

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the device is being asked, not the oracle."""
    asked = [False]

    def outcome(call: Call, *args: Any, **kwargs: Any) -> Outcome:
        asked[0] = call.device == DEVICE
        try:
            return original(call, *args, **kwargs)
        finally:
            asked[0] = False

    original = compare.outcome
    monkeypatch.setattr(compare, "outcome", outcome)
    return asked


def plus_one(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.add(x, 1, out=out)


def out_not_written(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x + 1 if out is None else out


def out_not_returned(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.add(x, 1, out=out).clone()


def out_cast(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.add(x, 1, out=out) if out is None or out.is_floating_point() else out


def out_resized(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.add(x, 1, out=out if out is None else out.resize_(x.shape))


def out_neighbours(x: Tensor, out: Tensor | None = None) -> Tensor:
    if out is not None:
        whole(out).fill_(5)
    return torch.add(x, 1, out=out)


def writes_argument(x: Tensor) -> Tensor:
    return -x.add_(1) + 1


def writes_neighbours(x: Tensor) -> Tensor:
    whole(x).add_(1)
    return x


def hides_the_write(x: Tensor) -> Tensor:
    x.data.add_(1)
    return x


def moves_elsewhere(x: Tensor) -> Tensor:
    return x.set_((x + 1).untyped_storage(), 0, x.shape)


def reads_the_gaps(x: Tensor) -> Tensor:
    return -x.as_strided(x.shape, torch.empty(x.shape).stride())


def triples_under_autograd(x: Tensor) -> Tensor:
    return x.t().mul_(3) if x.requires_grad else x.t()


def fails(message: str, kind: type[Exception] = ValueError) -> Function:
    def operator(_: Tensor) -> None:
        raise kind(message)

    return operator


def fails_late(x: Tensor) -> None:
    x.zero_()
    raise ValueError("too large")


def square(x: Tensor) -> Tensor:
    return x * x


class OnceDifferentiable(torch.autograd.Function):
    """A square whose gradient takes its argument for a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Tensor:
        return weight * 2 * ctx.saved_tensors[0].detach()


# The check, what the oracle does, what the device does, and what the check says.
CASES: list[tuple[str, Function, Function, str]] = [
    ("forward", torch.neg, torch.abs, "not close"),
    ("forward", torch.neg, lambda x: -x.double(), "dtype"),
    ("forward", torch.neg, lambda x: -x[None], "shape"),
    ("forward", torch.neg, lambda x: (-x).t().contiguous().t(), "stride"),
    ("forward", torch.neg, fails("no kernel"), "no kernel"),
    ("forward", lambda x: (-x, x), lambda x: (-x,), "1 results"),
    ("forward", lambda x: x, torch.clone, "share memory"),
    ("forward", torch.clone, lambda x: x.view(x.shape), "share memory"),
    ("forward", torch.neg, writes_argument, "not close"),
    ("noncontiguous", torch.neg, reads_the_gaps, "not close"),
    ("view", torch.t, lambda x: x.t().clone(), "share memory"),
    ("view", torch.t, lambda x: x.data.t().data, "are views"),
    ("view", lambda x: x[1:], lambda x: x[:-1], "storage offset"),
    ("view", torch.t, triples_under_autograd, "not close"),
    ("inplace", lambda x: x.add_(1), moves_elsewhere, "not close"),
    ("inplace", lambda x: x.add_(1), hides_the_write, "1, not 2"),
    ("inplace", lambda x: x.add_(1), lambda x: x + 1, "False, not True"),
    ("inplace", lambda x: x.add_(1), writes_neighbours, "not close"),
    ("inplace", lambda x: x.mul_(2), lambda x: x.add_(x.detach()), "not close"),
    ("out", plus_one, out_not_written, "not close"),
    ("out", plus_one, out_not_returned, "not out="),
    ("out", plus_one, out_neighbours, "not close"),
    ("out", plus_one, out_cast, "no error"),
    ("out", plus_one, out_resized, "warned"),
    ("backward", square, lambda x: x * x.detach(), "not close"),
    ("backward", square, lambda x: square(x.detach()), "0 results require"),
    ("second_order", square, OnceDifferentiable.apply, "for a tensor"),
    ("errors", fails("too large"), torch.neg, "no error"),
    ("errors", fails("too large"), fails("too large", TypeError), "TypeError"),
    ("errors", fails("too large"), fails("bad"), "bad"),
    ("errors", fails("too large"), fails_late, "not close"),
]


@pytest.mark.parametrize(("check", "right", "wrong", "says"), CASES)
def test_notices(
    check: str, right: Function, wrong: Function, says: str, on_device: list[bool]
) -> None:
    run = getattr(checks, check)
    run(operator(check, right, right, on_device), torch.float32, DEVICE)
    with pytest.raises((AssertionError, ValueError), match=says):
        run(operator(check, right, wrong, on_device), torch.float32, DEVICE)


def test_what_the_oracle_refuses_is_not_applicable(on_device: list[bool]) -> None:
    refuses = fails("no such kernel")
    with pytest.raises(NotApplicable):
        checks.forward(operator("forward", refuses, refuses, on_device), torch.float32, DEVICE)


def operator(check: str, right: Function, wrong: Function, on_device: list[bool]) -> OpInfo:
    """An entry of the database that does `right` on the oracle and `wrong` on the device."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return (wrong if on_device[0] else right)(*args, **kwargs)

    return OpInfo(
        "made_up",
        op=function,
        inplace_variant=function if check == "inplace" else None,
        dtypes=(torch.float32,),
        sample_inputs_func=sample_inputs,
        error_inputs_func=error_inputs,
    )


def sample_inputs(
    _op: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool
) -> Iterator[SampleInput]:
    x = torch.arange(6, dtype=dtype, device=device).reshape(2, 3) + 1
    yield SampleInput(x.requires_grad_(requires_grad))


def error_inputs(_op: OpInfo, device: str) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput(torch.ones(3, device=device)), error_regex="")
