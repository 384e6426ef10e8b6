"""Ways to put the same question to the oracle and to the device, and to a fresh interpreter."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import before_torch  # noqa: F401
import prepared
import pytest
import torch
from util import DEVICE, KIND, ORACLE, assert_same

ROOT = Path(__file__).parent.parent


def only_on_cpu_memory(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(KIND != "cpu", reason=why)


SANITIZED = bool(os.environ.get("TORCH_TINY_SANITIZED"))  # tests/sanitized.py
_SLOWER = 10 if SANITIZED else 1
weighs_memory = pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps what was freed")
needs_tiny = pytest.mark.skipif(DEVICE != "tiny", reason="another device stands in for tiny")
needs_cpu_memory = only_on_cpu_memory("needs memory that the host can see")
no_device_asserts = only_on_cpu_memory("a bad index on a GPU ends the CUDA context of the process")


def agree(program: Callable[[str], Any], device: str, **how: bool) -> None:
    """The program's result on the device is the oracle's; `how`: see assert_same."""
    expected = program(ORACLE)
    assert_same(program(device), expected, **how)


def agree_on_error(program: Callable[[str], Any], device: str, message: bool = True) -> str:
    """The program raises on the device what it raises on the oracle, at once or when it is read.

    Returns the device's message, which holds the first line of the oracle's.
    """
    with pytest.raises(Exception) as expected:
        program(ORACLE)
    with pytest.raises(expected.type) as got:
        program(device)
        synchronize(device)
    if message:
        first = str(expected.value).splitlines()[0]
        assert _without_devices(first) in _without_devices(str(got.value))
    return str(got.value)


def synchronize(device: str = DEVICE) -> None:
    if device != ORACLE:
        torch.tiny.synchronize()


def python(
    code: str, *, status: int = 0, timeout: float = 120, provokes: str = "", **env: str
) -> str:
    """Run a program in a fresh interpreter; its output, once it ended with `status`.

    provokes: what it has to warn of; else it must not warn that something failed.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout * _SLOWER,
        cwd=ROOT,
        env=environment(env),
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    _check_failures(done.stderr, provokes)
    return done.stdout


PORTABLE_KINDS = ("cl", "webgpu")


def on_portable(kind: str, code: str, provokes: str = "", **env: str) -> list[str]:
    """The lines that a program prints where tiny is a portable device, or several."""
    head = "import torch, torch_tiny, warnings\nfrom torch.nn import functional as F\n"
    program = head + textwrap.dedent(code)
    env["TORCH_TINY_DEVICES"] = kind
    if not all(name.startswith("TORCH_TINY_") for name in env):
        return python(program, provokes=provokes, **env).splitlines()
    status, out, err = prepared.run(program, environment(env), ROOT, 120)
    assert status == 0, f"status {status}\n{out}\n{err}"
    _check_failures(err, provokes)
    return out.splitlines()


@cache
def why_no_portable(kind: str) -> str | None:
    """Why a kind cannot be tried here; `make devices` installs both."""
    from torch_tiny import hosts

    if reason := hosts.why_no_portable(kind):
        return reason
    try:
        on_portable(kind, 'print((torch.ones(3, device="tiny") + 1).sum().item())')
    except AssertionError as error:
        return str(error).splitlines()[-1]
    return None


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """The same random CPU tensor for the same seed."""
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)


def _check_failures(errors: str, provoked: str) -> None:
    """As the fixture around all tests does for their own process."""
    told = [line for line in errors.splitlines() if "FailureWarning: " in line]
    if provoked:
        assert any(provoked in line for line in told), errors
    else:
        assert not told, errors


def environment(env: dict[str, str]) -> dict[str, str]:
    paths = [str(ROOT), _entry_point(), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **env}


def _without_devices(text: str) -> str:
    """A message as it would be without the name of a device, or of its tensors' types."""
    text = re.sub(r"\b(?:tiny|CUDA|CPU)(\w+)Type\b", r"torch.\1Tensor", text)
    text = re.sub(r"\btorch\.(?:tiny|cuda)\.", "torch.", text)
    return re.sub(r"\b(?:tiny|cuda|cpu)(?::0)?\b", "DEVICE", text, flags=re.IGNORECASE)


@cache
def _entry_point() -> str:
    """A folder that announces the device to torch as an installation does; "" if there is one."""
    group = "torch.backends"
    if entry_points(group=group, name="torch_tiny"):
        return ""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = (f"{name} = {target}" for name, target in project["entry-points"][group].items())
    folder = tempfile.mkdtemp(prefix="torch_tiny_")
    atexit.register(shutil.rmtree, folder)
    info = Path(folder) / "torch_tiny-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_tiny\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")
    return folder
