"""Loads at places that data says: done whatever the data, so that loops around them vectorize.

A load behind a condition is one that gcc leaves alone. Where the condition is that an index is in
range, the load is done at a place that is, and its value taken if the index was.
"""

from torch_tiny.uops import Ops, PatternMatcher, UOp, UPat
from torch_tiny.uops.sealed import sealed

PLACE = "place"
"""The operator around an index that is in range: what is computed of it does not overflow."""


def _loaded_anyway(load: UOp) -> UOp | None:
    at, other, gate = load.src
    buffer, index = at.src
    lowest = _lowest(gate)
    known = index.backward_slice
    if not lowest or any(value not in known and value is not index for value in lowest):
        return None
    places = {
        value: sealed(PLACE, value.dtype, (gate.where(value, value.const_like(low)),))
        for value, low in lowest.items()
    }
    safe = at.replace(src=(buffer, index.substitute(places, walk=True)))
    return gate.where(load.replace(src=(safe,)), other)


def _lowest(gate: UOp) -> dict[UOp, int]:
    """Values from memory that a gate asks to be in a range, and its begin; none if it asks more."""
    first: dict[UOp, int] = {}
    bounded: set[UOp] = set()
    for term in gate.split_uop(Ops.AND):
        if term.op is not Ops.CMPLT:
            return {}
        left, right = term.src
        if left.op is Ops.CONST:
            first[right] = max(left.arg + 1, first.get(right, left.arg + 1))
        elif right.op is Ops.CONST:
            bounded.add(left)
        else:
            return {}
    is_whole = first.keys() == bounded and all(map(_is_of_memory, first))
    return first if is_whole else {}


def _is_of_memory(value: UOp) -> bool:
    """Whether loops have a part in it only by saying where it is read."""
    outside = value.toposort(gate=lambda u: u.op is not Ops.LOAD)
    return value.op_in_backward_slice_with_self(Ops.LOAD) and all(
        u.op is not Ops.RANGE for u in outside
    )


gates_of_data = PatternMatcher(
    [(UPat(Ops.LOAD, src=(UPat(Ops.INDEX), UPat(), UPat()), name="load"), _loaded_anyway)]
)
