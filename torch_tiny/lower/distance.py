"""Distances between rows and their gradients."""

import math

from torch_tiny.lower.arithmetic import absolute
from torch_tiny.lower.index import place, take
from torch_tiny.lower.promote import Number, as_uop
from torch_tiny.lower.reduce import vector_norm
from torch_tiny.lower.rule import Rule, Table, heavy
from torch_tiny.lower.shapes import arange, full, full_like, total
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape


def _slope(difference: UOp, far: UOp, p: Number) -> UOp:
    """The derivative of the distance `far` by each component of a difference."""
    size = absolute(difference)
    sign = call("copysign", difference.ne(0).cast(size.dtype), difference)
    if p == math.inf:
        return size.eq(far).where(sign, full((), 0, size.dtype))
    if p == 0:
        return full_like(difference, 0)
    power = as_uop(p, size.dtype) - 1.0
    steep = call("pow", size, power) / call("pow", far, power)
    # d|x|/dx is 0 where x is, whatever the power says.
    return (size.eq(0) | far.eq(0)).where(full_like(size, 0), sign * steep)


def _cdist_backward(grad: UOp, a: UOp, b: UOp, p: Number, distances: UOp) -> UOp:
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    slope = _slope(difference, distances.unsqueeze(-1), p)
    return total(slope * grad.unsqueeze(-1), (difference.ndim - 2,))


def _pairs(n: int) -> tuple[UOp, UOp]:
    """The rows i < j of each pair, in the order of pdist."""
    pair = arange(n * (n - 1) // 2)
    row = arange(n)
    start = row * n - row * (row + 1) // 2
    later = (pair.unsqueeze(1) >= start) & row.ne(0)
    i = total(later.cast(dtypes.int32), (1,))
    return i, pair - (i * n - i * (i + 1) // 2) + i + 1


def _pdist(x: UOp, p: Number) -> UOp:
    n = int_shape(x)[0]
    if n < 2:
        return full((0,), 0, x.dtype)
    i, j = _pairs(n)
    return vector_norm(take(x, 0, i) - take(x, 0, j), p, [-1])


def _pdist_backward(grad: UOp, x: UOp, p: Number, distances: UOp) -> UOp:
    n = int_shape(x)[0]
    if n < 2:
        return full_like(x, 0)
    i, j = _pairs(n)
    slope = _slope(take(x, 0, i) - take(x, 0, j), distances.unsqueeze(1), p)
    pull = slope * grad.unsqueeze(1)
    return place(pull, 0, i, n) - place(pull, 0, j, n)


TABLE: Table = {
    "_cdist_forward": lambda a, b, p, _mode: vector_norm(
        a.unsqueeze(-2) - b.unsqueeze(-3), p, [-1]
    ),
    "_cdist_backward": _cdist_backward,
    "_pdist_forward": Rule(_pdist, cost=heavy),
    "_pdist_backward": Rule(_pdist_backward, cost=heavy),
}
