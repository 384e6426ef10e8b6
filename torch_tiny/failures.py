"""What went wrong without changing a result: counted, listed in reports, warned about once.

A compile that failed, a cache that cannot be written, a result in another layout than before,
compiled code that refuses its data: each costs speed, and nobody would notice.
"""

import atexit
import os
import threading
import warnings

from torch_tiny import _C
from torch_tiny.report import Failure

KINDS = {
    "compile": "compiling failed, so PyTorch's own kernels go on",
    "cache": "compiled code cannot be kept for the next process",
    "missing": "nothing is compiled",
    "relayout": "a result had to be copied",
    "refusal": "compiled code ran in vain",
}


class FailureWarning(UserWarning):
    """Something that costs speed has failed; `torch_tiny.report()` lists all such failures."""


class _Log:
    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Also in a forked child, whose parent may hold the lock."""
        self._lock = threading.RLock()  # `tell` comes between any two steps of the main thread
        self._counts: dict[tuple[str, str, str], int] = {}
        self._told: dict[str, Failure] = {}

    def add(self, kind: str, reason: str, where: str) -> None:
        with self._lock:
            key = (kind, reason, where)
            self._counts[key] = self._counts.get(key, 0) + 1
        _C.tell_soon()

    def all(self) -> list[Failure]:
        with self._lock:
            own = list(self._counts.items())
        found = [Failure(*key, count) for key, count in own]
        found += [Failure(**trouble) for trouble in _C.troubles()]
        return sorted(found, key=lambda failure: failure.count, reverse=True)

    def tell(self) -> None:
        """Warn of the first failure of each kind, at the line that caused it."""
        for failure in self.all():
            if self._told.setdefault(failure.kind, failure) is not failure:
                continue
            text = f"{KINDS[failure.kind]}: {failure.reason} (torch_tiny.report() lists all)"
            file, _, line = failure.where.rpartition(":")
            if line.isdigit():
                warnings.warn_explicit(text, FailureWarning, file, int(line))
            else:
                place = f", in {failure.where}" if failure.where else ""
                warnings.warn_explicit(f"{text}{place}", FailureWarning, "torch_tiny", 1)


_log = _Log()

note = _log.add
"""Any thread may; the warning comes from the main thread, between two of its steps."""
listed = _log.all


def install() -> None:
    """Have the core tell of failures, and tell the last ones when the program ends."""
    _C.set_teller(_log.tell)
    atexit.register(_log.tell)
    os.register_at_fork(after_in_child=_log.renew)
