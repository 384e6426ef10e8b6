"""The known gaps: what the device does not do as the CPU does, and why.

Each entry stands for one item of test_opdb.py; one that passes, or matches none, fails the run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    """One item that fails: `op` with its variant ("linalg.det.singular"), check and dtype.

    `kind` narrows it to one memory ("cpu", "cuda"), `torch` to versions (">=2.13", "<2.12").
    """

    op: str
    check: str
    dtype: str
    reason: str
    kind: str | None = None
    torch: str | None = None


GAPS: list[Gap] = []
