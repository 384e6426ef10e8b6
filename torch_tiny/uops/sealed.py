"""The operator that tinygrad's algebra knows nothing of: what it computes is a name of ours.

It is a MULACC with a name for its argument and one or two operands. Shapes, loops and types are
worked out for it as for any ternary operator, and rules that would compute it ask for three.
"""

from collections.abc import Sequence
from typing import cast

from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

HALVES = (dtypes.float16, dtypes.bfloat16)


def sealed(name: str, dtype: DType, operands: Sequence[UOp]) -> UOp:
    """An operator on one or two operands that no rule knows; `called_name` gives the name."""
    return UOp(Ops.MULACC, dtype, tuple(operands), name)


def called_name(u: UOp) -> str | None:
    """The name of a sealed operator; None of any other."""
    return cast(str, u.arg) if u.op is Ops.MULACC else None


def sealed_pattern(dtype: tuple[DType, ...] | None = None) -> UPat:
    """Matches sealed operators, as `u`."""
    return UPat(Ops.MULACC, dtype, name="u")


def call(name: str, *operands: UOp | float) -> UOp:
    """A float operator by its C name without a suffix: call("tanh", x), call("atan2", y, x).

    One or two operands, broadcast. Half types are computed in float32 and rounded once.
    """
    uops = tuple(x if isinstance(x, UOp) else UOp.const(x) for x in operands)
    if len(uops) == 2:
        uops = uops[0]._broadcasted(uops[1])
    dtype = next(x.dtype for x in uops if x.dtype in dtypes.floats)
    if dtype in HALVES:
        return call(name, *(x.cast(dtypes.float32) for x in uops)).cast(dtype)
    return sealed(name, dtype, uops)


def combined(name: str, x: UOp) -> UOp:
    """What the threads of a group make of their x together; `called_name` gives the name."""
    return sealed(name, x.dtype, (x,))


# As tinygrad's rules for its own operators. Of what nobody reads, nobody reads the result:
sealed_of_nothing = PatternMatcher(
    [(sealed_pattern(), lambda u: next((s.base for s in u.src if s.base.is_invalid), None))]
)


def _gate_outside(u: UOp) -> UOp | None:
    for operand in u.src:
        if operand.op is Ops.WHERE and operand.src[2].is_invalid:
            gate, inside, none = operand.src
            src = tuple(inside if s is operand else s for s in u.src)
            return gate.where(u.replace(src=src), none)
    return None


# A place in memory is a choice of one and of none.
sealed_gates = PatternMatcher([(sealed_pattern(dtypes.ints), _gate_outside)])
