"""TORCH_TINY_DEVICES: which memory tiny:0, tiny:1, ... live in."""

import os
import re

import torch

VARIABLE = "TORCH_TINY_DEVICES"


def from_environment() -> list[str]:
    """The memory of each tiny device, in order: "cpu" or "cuda:<index>"."""
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


def _host(name: str, text: str) -> str:
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise ValueError(
            f"{VARIABLE}={text!r}: {name!r} is no memory that torch_tiny knows. It takes a comma-"
            f"separated list of 'cpu', 'cuda' (which is 'cuda:0') and 'cuda:<index>'; "
            f"here: {', '.join(available())}"
        )
    if name == "cpu":
        return name
    host = f"cuda:{match[1] or 0}"
    # The count comes from NVML, so asking for it does not keep a process from forking later.
    if host not in available():
        reason = why_no_cuda() or f"the GPUs are {', '.join(available()[1:])}"
        raise ValueError(f"{VARIABLE}={text!r}: {name!r} is not available: {reason}")
    return host
