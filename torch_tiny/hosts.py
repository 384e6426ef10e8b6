"""TORCH_TINY_DEVICES: which memory tiny:0, tiny:1, ... live in."""

import importlib.util
import os
import pkgutil
import re
from pathlib import Path

import torch

VARIABLE = "TORCH_TINY_DEVICES"


def from_environment() -> list[str]:
    """The memory of each tiny device, in order: "cpu", "cuda:<index>" or a portable kind."""
    return parse(os.environ.get(VARIABLE) or "cpu")


def parse(text: str) -> list[str]:
    """`"cpu,cuda"` -> `["cpu", "cuda:0"]`; a ValueError names what is wrong and what is right."""
    return [_host(name.strip(), text) for name in text.split(",")]


def available() -> list[str]:
    """Every name that can be given here and now."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def why_no_cuda() -> str | None:
    """Why there is no "cuda" here and how to get it; None where there is."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built without CUDA: install a build of torch that has it"
        )
    if torch.cuda.device_count() == 0:
        return "no GPU is visible: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
    return None


def why_no_portable(kind: str) -> str | None:
    """What is missing for a portable kind and how to get it; None if nothing is known to be."""
    if importlib.util.find_spec("tinygrad") is None:
        return "tinygrad is not installed: pip install tinygrad==0.14.0"
    try:
        from torch_tiny.portable.kind import find_kind
    except ValueError as error:
        return f"tinygrad takes a variable of the environment, as DEBUG, for a number: {error}"

    return find_kind(kind).why_not()


def portable_kinds() -> list[str]:
    """The kinds of memory that only tinygrad drives."""
    return sorted(module.name for module in pkgutil.iter_modules([str(_KINDS)]))


_KINDS = Path(__file__).parent / "portable" / "kinds"


def _unknown(name: str, text: str) -> str:
    return (
        f"{VARIABLE}={text!r}: {name!r} is no memory that torch_tiny knows. It takes a comma-"
        f"separated list of 'cpu', 'cuda' (which is 'cuda:0'), 'cuda:<index>' and the kinds that "
        f"tinygrad drives: {', '.join(portable_kinds())}; here: {', '.join(available())}"
    )


def _portable(name: str, text: str) -> str:
    match = re.fullmatch(r"(\w+)(?::(\d+))?", name)
    if match is None or match[1] not in portable_kinds():
        raise ValueError(_unknown(name, text))
    if reason := why_no_portable(match[1]):
        raise ValueError(f"{VARIABLE}={text!r}: {name!r} is not available: {reason}")
    return match[1] if int(match[2] or 0) == 0 else name


def _host(name: str, text: str) -> str:
    if not name.startswith(("cpu", "cuda")):
        return _portable(name, text)
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise ValueError(_unknown(name, text))
    if name == "cpu":
        return name
    host = f"cuda:{match[1] or 0}"
    # The count comes from NVML, so asking for it does not keep a process from forking later.
    if host not in available():
        reason = why_no_cuda() or f"the GPUs are {', '.join(available()[1:])}"
        raise ValueError(f"{VARIABLE}={text!r}: {name!r} is not available: {reason}")
    return host
