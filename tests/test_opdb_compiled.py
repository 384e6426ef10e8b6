"""PyTorch's operator database with everything compiled, as TORCH_TINY_ENGINE=uop does.

Only operators that no_lowering.py names may be refused; everything that compiles must be right.
A part of the database by default, all of it with TORCH_TINY_OPDB_COMPILED=all.
"""

import os
import re
from collections import Counter

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny
from no_lowering import NO_LOWERING, REAL_ONLY, REFUSED
from opdb.compare import NotApplicable, synchronize
from opdb.gaps import gap_of
from opdb.items import Item, items
from opdb.referee import assert_as_exact
from opdb.samples import limited
from util import DEVICE

from torch_tiny.lower import has_lowering

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("everything_compiled"),
]

CHECKS = ("forward", "backward", "inplace", "view")
DTYPES = (torch.float32, torch.complex64)
EVERYTHING = os.environ.get("TORCH_TINY_OPDB_COMPILED") == "all"
ONE_IN = 1 if EVERYTHING else 9
SAMPLES = 3
TIMES = 3  # a first call is not recorded, a second is compiled, a third runs what was compiled

tally: Counter[tuple[str, bool]] = Counter()
"""By check: how many items in float32 ran whole, and how many did not."""


def selected() -> list[Item]:
    return [
        item
        for check in CHECKS
        for number, item in enumerate(items(check))
        if item.dtype in DTYPES and number % ONE_IN == 0
    ]


@pytest.mark.parametrize("item", selected(), ids=lambda item: f"{item.check}-{item}")
def test_compiled(item: Item) -> None:
    gap = gap_of(item, compiled=True)
    try:
        with limited(SAMPLES, TIMES):
            run(item)
    except NotApplicable as why:
        pytest.skip(f"not applicable: {why}")
    except Exception as error:
        if gap is not None:
            pytest.xfail(gap.reason)
        refused = refused_by(error)
        if not refused:
            raise
        count(item, False)
        unknown = refused - NO_LOWERING.keys() - REFUSED.keys()
        unknown -= REAL_ONLY if item.dtype.is_complex else set()
        assert not unknown, f"no lowering any more: {error}"
        pytest.skip(f"no lowering for {', '.join(sorted(refused))}")
    finally:
        synchronize(DEVICE)
    assert gap is None, "a known gap passes: remove it from expected_failures.py"
    count(item, True)


def run(item: Item) -> None:
    """Where float32 results are not close to each other, float64 decides."""
    try:
        item.run(DEVICE)
    except AssertionError as error:
        if "not close" not in str(error):
            raise
        assert_as_exact(item, DEVICE)


def refused_by(error: Exception) -> set[str]:
    """The operators that TORCH_TINY_ENGINE=uop had no lowering for."""
    _, found, rest = str(error).partition("there is no lowering for ")
    return set(re.findall(r"(?:^|; )(\w+::[\w.]+) \(", rest.splitlines()[0])) if found else set()


def count(item: Item, whole: bool) -> None:
    if item.dtype == torch.float32:
        tally[item.check, whole] += 1


@pytest.mark.parametrize("op", sorted(NO_LOWERING))
def test_has_no_lowering_yet(op: str) -> None:
    assert not has_lowering(op), "remove it from the list"


@pytest.mark.skipif(
    not EVERYTHING or "PYTEST_XDIST_WORKER" in os.environ, reason="a share of the whole database"
)
@pytest.mark.parametrize("check", CHECKS)
def test_most_entries_run_whole(check: str) -> None:
    ran, refused = tally[check, True], tally[check, False]
    assert ran >= 0.85 * (ran + refused), f"{ran} of {ran + refused} entries run whole"
