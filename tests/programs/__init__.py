"""Random programs, run in lock step on the oracle and on the device; all live tensors must agree.

    python -m tests.programs --count 10000 --seed 0

prints each difference as a regression test ready to paste into tests/test_regressions.py.
"""

import sys
from pathlib import Path

# For `util`, where pytest has not done so.
sys.path.append(str(Path(__file__).parent.parent))

from .lockstep import DifferenceError, LockStep, NotAProgramError, check, run, seeded
from .search import as_test, differs, generate, reduce, write_program

__all__ = [
    "DifferenceError",
    "LockStep",
    "NotAProgramError",
    "as_test",
    "check",
    "differs",
    "generate",
    "reduce",
    "run",
    "seeded",
    "write_program",
]
