"""Operators that are made of others where a device lacks what PyTorch's kernels need.

A row is the operator, where it is made of others, and the function that makes it, which takes all
of the operator's arguments in order. It runs below autograd; where it returns NotImplemented the
call is recorded as any other.
"""

from torch_tiny.composed import data_sized, histogram, matrix_functions, random
from torch_tiny.composed.row import Row

TABLE: tuple[Row, ...] = (
    *data_sized.TABLE,
    *histogram.TABLE,
    *matrix_functions.TABLE,
    *random.TABLE,
)
