"""Ways to put the same question to the CPU and to the device, and to a fresh interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from util import DEVICE, KIND, assert_same

ROOT = Path(__file__).parent.parent

needs_tiny = pytest.mark.skipif(DEVICE != "tiny", reason="another device stands in for tiny")
needs_cpu_memory = pytest.mark.skipif(KIND != "cpu", reason="needs memory that the host can see")
same_kernels = pytest.mark.skipif(KIND != "cpu", reason="needs the CPU's own kernels")
no_device_asserts = pytest.mark.skipif(
    KIND != "cpu", reason="a bad index on a GPU ends the CUDA context of the process"
)


def agree(program: Callable[[str], Any], device: str, **how: bool) -> None:
    """The program's result on the device is the one it has on the CPU; `how`: see assert_same.

    Strides too, where the CPU's own kernels run: those of a GPU lay out some results differently.
    """
    how.setdefault("strides", KIND == "cpu")
    expected = program("cpu")
    assert_same(program(device), expected, **how)


def agree_on_error(program: Callable[[str], Any], device: str, message: bool = True) -> str:
    """The program raises on the device what it raises on the CPU, at once or when it is read.

    Returns the device's message, which holds the first line of the CPU's.
    """
    with pytest.raises(Exception) as expected:
        program("cpu")
    with pytest.raises(expected.type) as got:
        program(device)
        synchronize(device)
    if message:
        first, text = str(expected.value).splitlines()[0], str(got.value)
        text = re.sub(rf"{device}(\w+)Type", r"torch.\1Tensor", text).replace(
            f"torch.{device}.", "torch."
        )
        assert first.replace("cpu", device) in text.replace("cpu", device)
    return str(got.value)


def synchronize(device: str = DEVICE) -> None:
    if device != "cpu":
        torch.tiny.synchronize()


def python(code: str, *, status: int = 0, timeout: float = 120, **env: str) -> str:
    """Run a program in a fresh interpreter; its output, once it ended with `status`."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **env},
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """The same random CPU tensor for the same seed."""
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
