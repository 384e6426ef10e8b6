"""Which of two float32 results is right, where they are not close: the one in float64 tells."""

import torch
from torch.testing import assert_close
from util import ORACLE, compared_by, largest_error

from opdb.items import Item
from opdb.samples import in_double

Pair = tuple[torch.Tensor, torch.Tensor]


def assert_as_exact(item: Item, device: str) -> None:
    """The device's results are close to the exact ones, or nearer to them than the oracle's are."""
    results = _compared(item, device)
    with in_double():
        exact = _compared(item, ORACLE)
    judge(results, [truth for truth, _ in exact])


def judge(results: list[Pair], exact: list[torch.Tensor]) -> None:
    """The same of pairs of a result and the oracle's, given the exact ones."""
    assert len(results) == len(exact), "computed in float64 it gives other results"
    for (ours, theirs), truth in zip(results, exact, strict=True):
        if not ours.is_floating_point() and not ours.is_complex():
            assert_close(ours, theirs)
        elif not _is_close(ours, theirs) and not _is_close(ours, truth):
            own, other = largest_error(ours, truth), largest_error(theirs, truth)
            assert own <= other, f"an error of {own:.3g}, where the oracle has one of {other:.3g}"


def _compared(item: Item, device: str) -> list[Pair]:
    """What the item compares, in order."""
    pairs: list[Pair] = []
    with compared_by(lambda ours, theirs: pairs.append((ours.clone(), theirs.clone()))):
        item.run(device)
    return pairs


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        assert_close(one, other.to(one.dtype), equal_nan=True)
    except AssertionError:
        return False
    return True
