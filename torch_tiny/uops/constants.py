"""Which number an expression is, so that its operator is called by its own name."""

from tinygrad.dtype import dtypes
from tinygrad.uop import GroupOp, Ops
from tinygrad.uop.ops import UOp


def is_constant(u: UOp) -> bool:
    """Whether it is known without memory; where it is padded it is 0."""
    while u.op in GroupOp.Movement or u.op is Ops.CAST:
        u = u.src[0]
    return u.op is Ops.CONST


def factor(u: UOp, value: float) -> UOp | None:
    """x, where u is x*value."""
    if u.op is Ops.MUL:
        for x, c in (u.src, u.src[::-1]):
            if x.shape == u.shape and equals(c, value):
                return x
    return None


def equals(u: UOp, value: float) -> bool:
    """Whether u is this number everywhere, as its type has it."""
    return _constant(u) == float(u.dtype.const(value))


def _constant(u: UOp) -> float | None:
    """Not where it is padded, nor where a conversion to an integer would change it."""
    if u.op is Ops.CONST:
        number = float(u.arg) if isinstance(u.arg, (int, float)) else None
    else:
        same = u.op is Ops.CAST or (u.op in GroupOp.Movement and u.op is not Ops.PAD)
        number = _constant(u.src[0]) if same else None
    if number is None:
        return None
    if dtypes.is_float(u.dtype):
        return float(u.dtype.const(number))
    return number if number.is_integer() and u.dtype.min <= number <= u.dtype.max else None
