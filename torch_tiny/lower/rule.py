"""A row of the tables: all that is known of the lowering of one operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_tiny.lower.complex_value import Complex
from torch_tiny.uops import UOp

Function = Callable[..., Any]
"""Takes an operator's arguments, one for each of its schema, and gives a value or Results."""
Results = tuple[UOp | Complex | None, ...]
Shapes = Sequence[tuple[int, ...]]


def light(_shapes: Shapes) -> bool:
    return False


def heavy(_shapes: Shapes) -> bool:
    """More work than elements: worth compiling only where there is nothing else to run it on."""
    return True


@dataclass(frozen=True)
class Rule:
    function: Function | None = None
    """For arguments that are real."""
    complex: Function | None = None
    """For calls with a complex argument, or that ask for a complex result."""
    cost: Callable[[Shapes], bool] = light
    """Whether that is much more work than elements, given the shapes of the tensors."""
    writes: Callable[[Sequence[Any]], tuple[str, ...]] | None = None
    """The names of the arguments that a call writes, where the schema does not tell."""
    reads_layout: bool = False
    """Whether the function is also told how the first argument lies in memory, as `layout`."""


Table = Mapping[str, Rule | Function]
"""By the operator's name. A function alone is a rule with nothing special."""


def rules(
    functions: Mapping[str, Function],
    cost: Callable[[Shapes], bool] = light,
    complex_of: Callable[[Function], Function] | None = None,
) -> dict[str, Rule]:
    """Rules that have something in common; `complex_of` makes the complex one of the real one."""
    return {
        name: Rule(function, None if complex_of is None else complex_of(function), cost)
        for name, function in functions.items()
    }
