"""One element of many: a sum of which the compiler makes a load."""

from torch_tiny.lower.promote import HALVES
from torch_tiny.lower.shapes import along, arange, full
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape


def gathered(x: UOp, dim: int, index: UOp) -> UOp:
    """x.gather(dim, index), for an index that is known to be in range."""
    shape = int_shape(index)
    x = x.shrink(tuple(None if d == dim else (0, n) for d, n in enumerate(shape)))
    return picked(
        hits(index.unsqueeze(dim + 1), dim + 1, int_shape(x)[dim]), x.unsqueeze(dim), dim + 1
    )


def hits(index: UOp, dim: int, size: int) -> UOp:
    """Which of so many positions along a dimension of size 1 the index names."""
    return index.eq(along(arange(size), dim, index.ndim).cast(index.dtype))


def kept(hit: UOp, values: UOp) -> UOp:
    return hit.where(values, full((), 0, values.dtype))


def picked(hit: UOp, values: UOp, dim: int) -> UOp:
    """The one value that was hit."""
    if values.dtype == dtypes.bool:
        return picked(hit, values.cast(dtypes.uint8), dim).cast(dtypes.bool)
    if values.dtype in HALVES:  # a conversion under the sum would keep it from becoming a load
        return picked(hit, values.cast(dtypes.float32), dim).cast(values.dtype)
    return kept(hit, values).sum((dim,), dtype=values.dtype)
