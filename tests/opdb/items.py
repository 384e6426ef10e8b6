"""What to check: every operator of the database, with the checks and dtypes that apply to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from util import ORACLE

from opdb import checks

# Each check, and whether it applies to an operator in a dtype.
CHECKS: dict[str, Callable[[OpInfo, torch.dtype], bool]] = {
    "forward": lambda _op, _dtype: True,
    "noncontiguous": lambda _op, _dtype: True,
    "view": checks.shares_memory,
    "inplace": lambda op, _dtype: op.inplace_variant is not None,
    "out": lambda op, _dtype: op.supports_out,
    "backward": checks.has_gradient,
    "second_order": lambda op, dtype: checks.has_gradient(op, dtype) and op.supports_gradgrad,
    "errors": lambda op, _dtype: bool(checks.bad_samples(op)),
}

# All checks run in the first of these that an operator supports, some checks in more of them.
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
MORE_DTYPES = {"forward": DTYPES, "view": (torch.complex64,)}


@dataclass(frozen=True)
class Item:
    """One check of one operator in one dtype."""

    check: str
    op: OpInfo
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.op.full_name}-{str(self.dtype).removeprefix('torch.')}"

    def run(self, device: str) -> None:
        """Raises where the device differs from its oracle, NotApplicable where nothing compares."""
        getattr(checks, self.check)(self.op, self.dtype, device)


@cache
def items(check: str) -> list[Item]:
    """All items of a check, in the order of the database."""
    applies = CHECKS[check]
    return [
        Item(check, op, dtype)
        for op in op_db
        if not op.name.startswith("jiterator")  # kernels that torch.cuda compiles for CUDA tensors
        for i, dtype in enumerate(_dtypes(op))
        if (i == 0 or dtype in MORE_DTYPES.get(check, ())) and applies(op, dtype)
    ]


def all_items() -> Iterator[Item]:
    """The items of all checks."""
    for check in CHECKS:
        yield from items(check)


def _dtypes(op: OpInfo) -> list[torch.dtype]:
    """The dtypes to check `op` in: any, where it has none of the usual ones."""
    supported = op.supported_dtypes(ORACLE)
    usual = [dtype for dtype in DTYPES if dtype in supported]
    return usual or sorted(supported, key=str)[:1]
