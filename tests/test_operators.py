"""What the core is told of operators by name (torch_tiny/operators.py)."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from torch_tiny.operators import TRAITS

CSRC = Path(__file__).parent.parent / "torch_tiny" / "csrc"
PATTERNS = [pattern for patterns in TRAITS.values() for pattern in patterns]
NAMES = torch._C._dispatch_get_all_op_names()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_row_is_of_an_operator_that_there_is(pattern: str) -> None:
    assert any(fnmatchcase(name, pattern) for name in NAMES)


@pytest.mark.parametrize("room", ["base", "memory", "core", "plan", "run"])
def test_the_core_names_no_operator(room: str) -> None:
    named = {
        path.name: re.findall(r'"aten::\w+', path.read_text()) for path in (CSRC / room).iterdir()
    }
    assert not any(named.values()), named
