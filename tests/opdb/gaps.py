"""Which items are known gaps."""

import torch
from expected_failures import COMPILED_GAPS, GAPS, Gap
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from util import KIND

from opdb.items import Item


def known_gaps() -> list[Gap]:
    """The entries about this memory and this version of PyTorch."""
    version = Version(torch.__version__).base_version
    return [
        gap
        for gap in GAPS
        if gap.kind in (None, KIND) and SpecifierSet(gap.torch or "").contains(version)
    ]


def gap_of(item: Item, compiled: bool = False) -> Gap | None:
    """The gap that an item is; there are more with everything compiled."""
    gaps = [*known_gaps(), *(COMPILED_GAPS if compiled else ())]
    return next((gap for gap in gaps if matches(gap, item)), None)


def matches(gap: Gap, item: Item) -> bool:
    return (gap.check, f"{gap.op}-{gap.dtype}") == (item.check, str(item))
