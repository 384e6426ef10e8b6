"""PyTorch's operator database on the device, with plain PyTorch as the oracle."""

import faulthandler
import sys
from collections.abc import Iterator

import pytest
import torch
from opdb.compare import NotApplicable, synchronize
from opdb.gaps import gap_of, known_gaps, matches
from opdb.items import Item, all_items, items
from util import DEVICE, KIND

SECONDS = 120  # an item takes far less than one


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """End the process where an item hangs, and say where: pytest-xdist goes on with the next."""
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="module")
def settings() -> Iterator[None]:
    """Every warning every time, and on a GPU the same float32 every time."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield
    torch.set_warn_always(always)


@pytest.mark.parametrize("item", items("forward"), ids=str)
def test_forward(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("noncontiguous"), ids=str)
def test_noncontiguous(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("view"), ids=str)
def test_view(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("inplace"), ids=str)
def test_inplace(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("out"), ids=str)
def test_out(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("backward"), ids=str)
def test_backward(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("second_order"), ids=str)
def test_second_order(item: Item) -> None:
    check(item)


@pytest.mark.parametrize("item", items("errors"), ids=str)
def test_errors(item: Item) -> None:
    check(item)


def test_gaps_are_few_and_exist() -> None:
    """Every known gap is one item, and 99.5 % of the float32 items are none (98 % on cuda)."""
    present = list(all_items())
    known = known_gaps()
    for gap in known:
        assert sum(matches(gap, item) for item in present) == 1, f"{gap} matches no item"
    assert len(set(known)) == len(known)
    few = 0.005 if KIND == "cpu" else 0.02
    applicable = [item for item in present if item.dtype == torch.float32]
    assert sum(gap.dtype == "float32" for gap in known) <= few * len(applicable)


def check(item: Item) -> None:
    """Run one item; a known gap has to fail."""
    gap = gap_of(item)
    try:
        item.run(DEVICE)
    except NotApplicable as why:
        if gap is None:
            pytest.skip(f"not applicable: {why}")
        pytest.fail(f"a known gap is not applicable: {why}")
    except Exception:
        if gap is None:
            raise
        pytest.xfail(gap.reason)
    finally:
        synchronize(DEVICE)
    if gap is not None:
        pytest.fail("a known gap passes: remove it from expected_failures.py")
