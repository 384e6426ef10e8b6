"""Where an operator is made of others."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """What the core registers."""

    operator: str
    where: str
    """One of those below."""
    function: Callable[..., Any]


ON_PORTABLE = "the first argument is on a portable device"
WITHOUT_DOUBLES = "the first argument is on a device without float64"
OF_PORTABLE_NUMBERS = "an argument is on a device that draws from the portable stream"
OF_INTEGERS_ON_CPU = "the first argument has integers, in memory of the CPU"
