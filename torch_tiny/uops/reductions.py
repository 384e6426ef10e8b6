"""Reductions: sums of equal terms as products, others as loops around an accumulator."""

import itertools
import math
from typing import cast

from tinygrad.codegen import merge_reduce_ends
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat, identity_element
from tinygrad.uop.symbolic import pm_clean_up_group_sink

from torch_tiny.uops.sealed import sealed


def _repeated(r: UOp) -> UOp | None:
    """A sum of n times the same float: tinygrad's is the product alone, which may be -0.0."""
    loops = r.src[1:]
    if r.arg[0] is not Ops.ADD or any(loop in r.src[0].ranges for loop in loops):
        return None
    if any(loop.src[0].op is not Ops.CONST for loop in loops):
        return None
    count = math.prod(int(loop.vmax) + 1 for loop in loops)
    product = sealed("mul", r.dtype, (r.src[0], UOp.const(float(count), r.dtype)))
    return sealed("add", r.dtype, (UOp.const(0.0, r.dtype), product))


def _over_loops(dtype: tuple[DType, ...] | None = None) -> UPat:
    return UPat(Ops.REDUCE, dtype, (UPat(), UPat()), name="r", allow_any_len=True)


repeated_sums = PatternMatcher([(_over_loops((dtypes.float32, dtypes.float64)), _repeated)])


def _accumulate(ctx: "itertools.count[int]", r: UOp) -> UOp:
    """A REDUCE as a scalar that is set before its loops, and added to inside them."""
    accumulator = UOp.placeholder_like(r, next(ctx), AddrSpace.REG)
    loops = r.src[1:]
    around = tuple(x for x in r.src[0].ranges if x not in loops)
    start = accumulator.after(*around).store(UOp.const(identity_element(r.arg[0], r.dtype)))
    running = accumulator.after(start, *loops)
    step = running.alu(r.arg[0], r.src[0])
    done = running.store(step).end(*loops).replace(tag="mergeable")
    return cast(UOp, accumulator.after(done))


def loops_apart(sink: UOp) -> UOp:
    """A loop that ends inside of different others becomes several.

    tinygrad leaves those that it has put together, inside of loops that became several.
    """
    while True:
        ends: dict[UOp, dict[frozenset[UOp], list[UOp]]] = {}
        uops = sink.toposort()
        for u in uops:
            if u.op is Ops.END:
                for loop in u.src[1:]:
                    ends.setdefault(loop, {}).setdefault(frozenset(u.ranges), []).append(u)
        number = itertools.count(max((u.arg[0] for u in uops if u.op is Ops.RANGE), default=0) + 1)
        moved: dict[UOp, UOp] = {}
        for loop, places in ends.items():
            for others in list(places.values())[1:]:
                own = loop.replace(arg=(next(number), *loop.arg[1:]))
                moved |= {end: _over(end, loop, own) for end in others}
            if moved:  # what is around it is another one then
                break
        if not moved:
            return sink
        sink = sink.substitute(moved)


def _over(end: UOp, loop: UOp, own: UOp) -> UOp:
    """The same over a loop of its own; what the loop did before, elsewhere, stays."""
    new = {loop: own}
    for u in end.toposort(lambda u: u is end or u.op is not Ops.END or loop not in u.src[1:]):
        source = tuple(new.get(s, s) for s in u.src)
        if u is not loop and source != u.src:
            new[u] = u.replace(src=source)
    return new[end]


accumulators = (
    PatternMatcher([(_over_loops(), _accumulate)])
    + PatternMatcher([(UPat(Ops.SINK, name="sink"), merge_reduce_ends)])
    + pm_clean_up_group_sink
)
