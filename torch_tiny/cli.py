"""The command `torch-tiny`."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata

import torch

import torch_tiny
from torch_tiny import _build, core, device, hosts
from torch_tiny.engine import settings


def main() -> None:
    """`torch-tiny info` prints versions, devices, and what is missing and how to get it."""
    parser = argparse.ArgumentParser(prog="torch-tiny", description=torch_tiny.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, devices, what is missing and how to get it")
    parser.parse_args()
    print(info())


def info() -> str:
    """The text of `torch-tiny info`."""
    sections = {"versions": _versions(), "devices": _devices(), "missing": _missing()}
    return "\n".join(
        line
        for title, rows in sections.items()
        for line in [title, *(f"  {name:<20} {value}" for name, value in rows)]
    )


Rows = list[tuple[str, str]]


def _versions() -> Rows:
    return [
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("torch_tiny", torch_tiny.__version__),
        ("core built for", f"torch {_build.TORCH}"),
        ("core built with", _build.COMPILER),
        ("compiler here", _compiler() or "none"),
    ]


def _devices() -> Rows:
    setting = os.environ.get(hosts.VARIABLE)
    return [
        (hosts.VARIABLE, setting or "not set, which means cpu"),
        ("available", ", ".join([*hosts.available(), *_portable()])),
        *((f"tiny:{i}", _describe(i)) for i in range(device.device_count())),
    ]


def _portable() -> list[str]:
    """The portable kinds that can be used."""
    return [kind for kind in hosts.portable_kinds() if _why_no_portable(kind) is None]


@cache
def _why_no_portable(kind: str) -> str | None:
    """What is missing, by trying; in a process of its own, which a driver may end."""
    if reason := hosts.why_no_portable(kind):
        return reason
    command = [sys.executable, "-P", "-c", _TRIAL]  # not what lies in the current folder
    environment = {**os.environ, hosts.VARIABLE: kind}
    try:
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_PATIENCE} s"
    except subprocess.CalledProcessError as error:
        said: list[str] = error.stderr.strip().splitlines()
        return said[-1] if said else str(error)
    return None


_TRIAL = 'import torch, torch_tiny; torch.ones(1, device="tiny").item()'
_PATIENCE = 60


def _describe(index: int) -> str:
    if device.is_portable(index):
        return f"{device.device_name(index)}: memory and kernels through tinygrad"
    properties = device.get_device_properties(index)
    size = f"{properties.total_memory / 2**30:.1f} GiB"
    return f"{device.device_name(index)}: {properties.name}, {size}"


def _missing() -> Rows:
    rows = []
    if reason := hosts.why_no_cuda():
        rows.append(("cuda", reason))
    for kind in hosts.portable_kinds():
        if reason := _why_no_portable(kind):
            rows.append((kind, reason))
    if _compiler() is None:
        rows.append(("compiler", "needed to build torch_tiny: install g++ (apt install g++)"))
    if reason := settings.why_not_compiled():
        rows.append(("compiled kernels", reason))
    entry_points = metadata.entry_points(group="torch.backends")
    if "torch_tiny" not in entry_points.names:
        rows.append(("autoload", f"`import torch` alone does not load it. {core.how_to_build()}"))
    return rows or [("nothing", "")]


def _compiler() -> str | None:
    """The first line that the C++ compiler says of itself."""
    command = shutil.which(os.environ.get("CXX", "c++"))
    if command is None:
        return None
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    works = answer.returncode == 0 and answer.stdout
    return answer.stdout.splitlines()[0] if works else f"{command}, which fails"
