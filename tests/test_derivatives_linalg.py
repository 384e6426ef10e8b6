"""Derivatives of linear algebra by our own kernels: a process for each kind of device."""

import pytest
from derivatives_linalg import BAR
from harness import ROOT, needs_cpu_memory, needs_tiny, python

from torch_tiny.hosts import why_no_portable

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes

KINDS = {
    "cpu": {"TORCH_TINY_DEVICES": "cpu", "TORCH_TINY_ENGINE": "uop"},
    "cl": {"TORCH_TINY_DEVICES": "cl"},
    "webgpu": {"TORCH_TINY_DEVICES": "webgpu"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives(kind: str) -> None:
    """In float32, against the CPU's in float64; nothing runs on the host. Complex results too."""
    if kind != "cpu" and (reason := why_no_portable(kind)):
        pytest.skip(f"no {kind}: {reason}; see make devices")
    file = ROOT / "tests" / "derivatives_linalg.py"
    said = python(
        f"import runpy, sys; sys.argv = ['']; runpy.run_path({str(file)!r}, run_name='__main__')",
        timeout=600,
        TORCH_TINY_FALLBACK="error",
        **KINDS[kind],
    )
    right = {line.split()[1] for line in said.splitlines() if line.startswith("right")}
    assert right == {*BAR, "complex"}
