"""What must hold of the data for an operator not to raise, noted while it is lowered.

A region whose conditions do not hold is run by PyTorch's own operators, which raise as they do.
Rules do not pass them along: half of them read by an index, through several others each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch_tiny.uops import UOp, dtypes

_noted: ContextVar[list[UOp] | None] = ContextVar("noted", default=None)


def require(condition: UOp) -> None:
    """Note that all elements of `condition` must be true."""
    noted = _noted.get()
    if noted is not None:
        noted.append(condition)


def require_index(index: UOp, size: int, *, from_end: bool = False) -> None:
    """Note that indices must be in range; counting from the end may be allowed."""
    if index.dtype != dtypes.bool and 0 not in index.shape:
        low = index.const_like(-size if from_end else 0)
        require((index >= low) & (index < index.const_like(size)))


@contextmanager
def collected() -> Iterator[list[UOp]]:
    """The conditions of everything that is lowered inside."""
    conditions: list[UOp] = []
    token = _noted.set(conditions)
    try:
        yield conditions
    finally:
        _noted.reset(token)


def all_hold(conditions: list[UOp]) -> UOp | None:
    """One bool for all conditions; None if there are none."""
    result = None
    for condition in dict.fromkeys(conditions):
        # A product over integers is an all() that the compiler vectorizes.
        holds = condition.cast(dtypes.int32).reshape((-1,)).prod(0)
        result = holds if result is None else result * holds
    return None if result is None else result.reshape(()).ne(0)
