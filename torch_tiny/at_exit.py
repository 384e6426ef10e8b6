"""Lets threads finish before the interpreter ends: autograd's and those that launch on CUDA.

They drop a finished backward after its caller has gone on; a thread that needs the GIL for that
when there is no interpreter any more aborts the process.
"""

import atexit
import time
from pathlib import Path

from torch_tiny import _C

_PATIENCE = 1.0  # seconds


def install() -> None:
    """Wait at exit, for a moment at most."""
    atexit.register(_wait_for_autograd)


def _wait_for_autograd() -> None:
    _C.finish()
    deadline = time.monotonic() + _PATIENCE
    time.sleep(0.001)  # gives the GIL away once: a thread that waits for it looks idle
    while any(map(_is_busy, Path("/proc/self/task").glob("*"))) and time.monotonic() < deadline:
        time.sleep(0.001)


def _is_busy(task: Path) -> bool:
    try:
        name, state = (task / "stat").read_text().split(") ")[:2]
    except OSError:
        return False
    return "pt_autograd" in name and not state.startswith("S")
