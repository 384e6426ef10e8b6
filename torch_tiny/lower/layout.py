"""How a call's first argument lies in memory, where what an operator computes depends on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_tiny.views import ViewSpec

_first: ViewSpec | None = None


def is_contiguous() -> bool:
    """Whether it does row by row; so it is taken to do where that is not known."""
    if _first is None or 0 in _first.shape:
        return True
    plain = ViewSpec.contiguous(_first.shape)
    sized = zip(_first.shape, _first.strides, plain.strides, strict=True)
    return all(stride == expected for n, stride, expected in sized if n > 1)


@contextmanager
def first_argument(spec: ViewSpec | None) -> Iterator[None]:
    """Calls that are lowered inside have this layout."""
    global _first
    before, _first = _first, spec
    try:
        yield
    finally:
        _first = before
