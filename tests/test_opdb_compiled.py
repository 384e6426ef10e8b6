"""PyTorch's operator database with everything compiled, as TORCH_TINY_ENGINE=uop does.

An operator without a lowering is skipped with its name; everything that compiles must be right.
A part of the database by default, all of it with TORCH_TINY_OPDB_COMPILED=all.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny
from opdb.compare import NotApplicable, synchronize
from opdb.items import Item, items
from opdb.samples import limited
from util import DEVICE

from torch_tiny import _C
from torch_tiny.engine.settings import Settings
from torch_tiny.engine.uop import Engine

pytestmark = [needs_tiny, needs_cpu_memory]

CHECKS = ("forward", "backward", "inplace", "view")
ONE_IN = 1 if os.environ.get("TORCH_TINY_OPDB_COMPILED") == "all" else 9
SAMPLES = 3

# Rounds differently than the CPU's kernel by a little more than assert_close grants.
ROUNDS_DIFFERENTLY = {"addbmm", "nn.functional.conv_transpose3d", "special.log_ndtr"}


@pytest.fixture(autouse=True, scope="module")
def everything_compiled() -> Iterator[None]:
    engine = Engine(Settings("uop", False, None))
    engine.start()
    yield
    _C.set_mode("aten")
    engine.stop()


def selected() -> list[Item]:
    return [
        item
        for check in CHECKS
        for number, item in enumerate(items(check))
        if item.dtype == torch.float32 and number % ONE_IN == 0
    ]


@pytest.mark.parametrize("item", selected(), ids=lambda item: f"{item.check}-{item}")
def test_compiled(item: Item) -> None:
    try:
        with limited(SAMPLES):
            item.run(DEVICE)
    except NotApplicable as why:
        pytest.skip(f"not applicable: {why}")
    except Exception as error:
        if "there is no lowering for" in str(error):
            pytest.skip(str(error).partition("TORCH_TINY_ENGINE=uop: ")[2].splitlines()[0])
        if item.op.name in ROUNDS_DIFFERENTLY and "not close" in str(error):
            pytest.xfail("rounds differently than the CPU's kernel")
        raise
    finally:
        synchronize(DEVICE)
