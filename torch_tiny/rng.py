"""TORCH_TINY_RNG: whose random numbers the devices draw. docs/random.md describes the stream."""

import os

VARIABLE = "TORCH_TINY_RNG"
CHOICES = ("default", "portable")


def is_portable() -> bool:
    """Whether all devices draw from the portable stream, also those with numbers of their own."""
    chosen = os.environ.get(VARIABLE) or "default"
    if chosen not in CHOICES:
        raise ValueError(f"{VARIABLE}={chosen!r} is not known; choose from {', '.join(CHOICES)}")
    return chosen == "portable"
