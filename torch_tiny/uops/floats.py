"""Float arithmetic, sealed: tinygrad's rules take floats for real numbers."""

from typing import cast

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat, graph_rewrite

from torch_tiny.uops.constants import equals, factor, is_constant
from torch_tiny.uops.sealed import HALVES, call, sealed


def seal_floats(sink: UOp) -> UOp:
    """Turns float arithmetic into `call`s.

    The rules fold x-x to 0, x*0 to 0, x/x to 1 and reassociate, which NaN, infinities, -0.0 and
    rounding do not survive. Sealed, the operators run as written. exp2(x*log2(e)) becomes exp(x) on
    the way.
    """
    return cast(UOp, graph_rewrite(sink, _seal, bottom_up=True))


# --- how it is done ---

_BY_THEIR_NAMES = (
    *(Ops.ADD, Ops.MUL, Ops.SUB, Ops.NEG, Ops.RECIPROCAL, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT),
    *(Ops.TRUNC, Ops.POW),
)
_NAMES = {op: op.name.lower() for op in _BY_THEIR_NAMES} | {Ops.FDIV: "div", Ops.MAX: "maximum"}
_LN2 = 0.6931471805599453


def _seal_one(u: UOp) -> UOp | None:
    if u.dtype not in dtypes.floats:
        return None
    if all(is_constant(s) for s in u.src):  # computed now; 1 * x is x, which needs a type for that
        typed = tuple(s.cast(u.dtype) if s.dtype in dtypes.weaks else s for s in u.src)
        return u.replace(src=typed) if typed != u.src else None
    if u.dtype in HALVES:
        wide = UOp(u.op, dtypes.float32, tuple(s.cast(dtypes.float32) for s in u.src), u.arg)
        return wide.cast(u.dtype)
    name, operands = _NAMES[u.op], u.src
    if u.op is Ops.MUL:
        negated = factor(u, -1.0)
        if negated is not None:
            name, operands = "neg", (negated,)
        else:
            for x, y in (u.src[::-1], u.src):
                if y.op is Ops.RECIPROCAL:
                    name, operands = "div", (x, y.src[0])
                elif y.op is Ops.LOG2 and equals(x, _LN2) and y.shape == u.shape:
                    name, operands = "log", y.src
    elif u.op is Ops.ADD and (right := factor(u.src[1], -1.0)) is not None:
        name, operands = "sub", (u.src[0], right)
    elif u.op is Ops.EXP2 and (power := factor(u.src[0], 1 / _LN2)) is not None:
        name, operands = "exp", (power,)
    operands = tuple(s if s.dtype in dtypes.weaks else s.cast(u.dtype) for s in operands)
    return sealed(name, u.dtype, operands)


def _seal_reduce(r: UOp) -> UOp | None:
    if r.dtype in HALVES:
        wide = r.src[0].cast(dtypes.float32)
        return r.replace(dtype=dtypes.float32, src=(wide, *r.src[1:])).cast(r.dtype)
    if r.arg[0] is Ops.MAX and r.dtype in _KEYS:
        ordered = _flipped(call("largest_nan", r.src[0]).bitcast(_KEYS[r.dtype]))
        largest = r.replace(dtype=ordered.dtype, src=(ordered, *r.src[1:]))
        return _flipped(largest).bitcast(r.dtype)
    return None


# A maximum of floats as one of integers: NaN counts as the largest, and gcc vectorizes it.
_KEYS = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}


def _flipped(bits: UOp) -> UOp:
    """Negative floats are in reverse order of their bits."""
    return cast(UOp, bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & bits.dtype.max))


_seal = PatternMatcher(
    [(UPat(tuple(_NAMES), name="u"), _seal_one), (UPat(Ops.REDUCE, name="r"), _seal_reduce)]
)
