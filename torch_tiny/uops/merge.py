"""Loops that end at a node: which they are, one by one, and neighbours as one.

tinygrad's own rules take the loops that the length of a loop depends on for ended, too, and go on
with loops that they have merged already: the sum of a stack was too large.
"""

import itertools
from typing import Any, cast

from tinygrad.codegen.simplify import count_divmod, pm_simplify_ranges, simplify_merge_adjacent
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat, _substitute, graph_rewrite

from torch_tiny.uops.rules import exchanged, symbolic


def _ended(u: UOp) -> list[UOp]:
    """The loops that end here, where some may be sums of others by now."""
    found = (r for s in u.src[1:] for r in ((s,) if s.op is Ops.RANGE else s.ranges))
    return list(dict.fromkeys(found))


def _split(end: UOp) -> UOp:
    body = end.src[0]
    for loop in sorted(_ended(end), key=lambda r: r.arg, reverse=True):
        body = body.end(loop)
    return body


def _flattened(u: UOp) -> UOp | None:
    return u.replace(src=(u.src[0], *_ended(u))) if len(u.src) > 1 else None


flatten_ranges = PatternMatcher([(UPat((Ops.REDUCE, Ops.END), name="u"), _flattened)])
# Loops with the highest numbers are the inner ones.
split_ends = PatternMatcher([(UPat(Ops.END, name="end"), _split)])


def _merged(u: UOp) -> UOp | None:
    if not all(loop.op is Ops.RANGE for loop in u.ended_ranges):
        return None
    now = u
    while (fewer := _with_one_less(now)) is not None:
        now = fewer
    return None if now is u else now


def _with_one_less(u: UOp) -> UOp | None:
    loops: Any = u.ended_ranges
    inside = [x.ranges for x in u.backward_slice_with_self if x.op is Ops.REDUCE]
    # A reduction has no order, nested loops have.
    pairs = itertools.permutations(loops, 2) if u.op is Ops.REDUCE else itertools.pairwise(loops)
    for outer, inner in pairs:
        if outer.arg[-1] != inner.arg[-1]:
            continue
        if any((outer in ranges) != (inner in ranges) for ranges in inside):
            continue
        length = inner.src[0]
        both = outer.replace(src=(outer.src[0] * length,))
        places = {outer: both // length, inner: both % length}
        new = graph_rewrite(u, _substitute + symbolic + flatten_ranges, ctx=places)
        if count_divmod(new) <= count_divmod(u):
            return cast(UOp, new)
    return None


_others = exchanged(pm_simplify_ranges, simplify_merge_adjacent, 1)
merge_ranges = PatternMatcher([(UPat((Ops.END, Ops.REDUCE), name="u"), _merged)]) + _others
