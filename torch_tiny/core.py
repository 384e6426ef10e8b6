"""Loads the C++ core, or says why it cannot be loaded and what to do about it."""

import importlib
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from torch_tiny import composed, operators, schemas


def load(hosts: list[str], numbers: str) -> None:
    """Load torch_tiny._C with one tiny device on each of `hosts`; an ImportError says how.

    numbers: whose random numbers devices draw, one of rng.CHOICES.
    """
    _check_build()
    _check_only_backend()
    try:
        core = importlib.import_module("torch_tiny._C")
    except ImportError as error:
        raise ImportError(
            f"the C++ core of torch_tiny does not load ({_why(error)}). {how_to_build()}"
        ) from error
    core.init(hosts, numbers, operators.TRAITS, composed.TABLE)
    for package in (torch.__file__, __file__):
        core.add_library_folder(f"{Path(package).parent}/")


def how_to_build() -> str:
    """The command that builds the core of this checkout, in a sentence."""
    root = Path(__file__).parent.parent
    where = f"-e {root}" if (root / "setup.py").exists() else "--force-reinstall torch_tiny"
    return f"Build it with: pip install --no-build-isolation {where}"


def _why(error: ImportError) -> str:
    """A core for another version of Python has another name, so it is only told to be missing."""
    cores = sorted(path.name for path in Path(__file__).parent.glob("_C.*.so"))
    if not cores or f"_C{EXTENSION_SUFFIXES[0]}" in cores:
        return str(error)
    return f"this is Python {platform.python_version()}, it is built as {', '.join(cores)}"


def _check_build() -> None:
    """A core built for another torch may load and then crash, so compare before loading."""
    try:
        from torch_tiny import _build
    except ImportError as error:
        raise ImportError(f"the C++ core of torch_tiny is not built. {how_to_build()}") from error
    if not schemas.FILE.exists():
        raise ImportError(f"the C++ core of torch_tiny is older than the package. {how_to_build()}")
    if _minor(_build.TORCH) != _minor(torch.__version__):
        raise ImportError(
            f"the C++ core of torch_tiny was built for torch {_build.TORCH}, "
            f"but this is torch {torch.__version__}. {how_to_build()}"
        )


def _check_only_backend() -> None:
    """PyTorch has room for one device from outside."""
    other = torch._C._get_privateuse1_backend_name()
    if other != "privateuseone":
        raise ImportError(
            f'the device "{other}" is loaded already and PyTorch takes only one such device. '
            "To choose, set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the package you want."
        )


def _minor(version: str) -> list[str]:
    """Extensions are compatible within 2.13.x."""
    return version.split(".")[:2]
