"""TORCH_TINY_RNG: whose random numbers the devices draw. docs/random.md describes the stream."""

import os

import torch

VARIABLE = "TORCH_TINY_RNG"
# default: the CPU's own numbers on cpu memory, the portable stream on every other kind.
# portable: the portable stream on all devices. host: PyTorch's own numbers on cpu and cuda memory.
CHOICES = ("default", "portable", "host")


def from_environment() -> str:
    """The choice; an unknown one is a ValueError that names those there are."""
    chosen = os.environ.get(VARIABLE) or "default"
    if chosen not in CHOICES:
        raise ValueError(f"{VARIABLE}={chosen!r} is not known; choose from {', '.join(CHOICES)}")
    if chosen == "default" and torch.version.hip is not None:
        return "host"  # the kernels that draw on a GPU are CUDA's
    return chosen
