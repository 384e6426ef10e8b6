"""Loop shapes that gcc makes fast code of: contiguous inner loops, tiles, many accumulators."""

import itertools
import math
from collections.abc import Callable

from torch_tiny.engine import c_math
from torch_tiny.engine.codegen_nest import (
    Nest,
    extent,
    is_contiguous_along,
    loads,
    place_of,
)
from torch_tiny.uops import (
    AddrSpace,
    AxisType,
    DType,
    Ops,
    UOp,
    called_name,
    dtypes,
    identity_element,
    simplified,
    sink_of,
    stride,
    substituted,
)

ACCUMULATORS = 4  # hide the latency of an addition
FAR_APART = 16384  # within a page, several streams of loads confuse the prefetcher
MAX_COLUMNS = 1024  # accumulated side by side, in the first-level cache
ROWS_AT_ONCE = 8  # added to the columns in one step, so that they are loaded and stored less often
TILE = 32
LONG_REDUCTION = 4096  # is cut in pieces where there is little else to divide among threads
MANY_PIECES = 64

# Local buffers are told apart by number; those of codegen_fuse start at 0.
_COLUMN_SLOTS, _TILE_SLOTS = 1_000_000, 2_000_000


def most_pieces(nest: Nest, length: int) -> int:
    """How many pieces of a reduction of that length keep the cores of a CPU busy."""
    if length < LONG_REDUCTION or not (nest.sums_columns or nest.size < MANY_PIECES):
        return 1
    return min(MANY_PIECES, 16 * length // LONG_REDUCTION)


def cut_reductions(
    nest: Nest,
    new_buffer: Callable[[DType, int], UOp],
    most: Callable[[Nest, int], int] = most_pieces,
) -> list[Nest]:
    """A long reduction that few threads could share becomes one of pieces, then one of the results.

    Sums of pieces are also more exact. most(nest, length): into how many pieces to cut it.
    """
    if len(nest.reduces) != 1 or not all(r in nest.loops for r in nest.reduces[0].ranges):
        return [nest]
    (reduce,) = nest.reduces
    first = min(reduce.src[1:], key=lambda r: r.arg)
    length, outputs = math.prod(extent(r) for r in reduce.src[1:]), nest.size
    pieces = _divisor(extent(first), most(nest, length))
    if pieces < 4:
        return [nest]
    ids = itertools.count(1 + max(r.arg[0] for r in (*nest.loops, *reduce.src[1:])))
    piece = UOp.range(pieces, -1, AxisType.WEAK)  # outermost
    rest = UOp.range(extent(first) // pieces, first.arg[0], AxisType.REDUCE)
    part = reduce.src[0].substitute({first: piece * extent(rest) + rest})
    others = tuple(r for r in reduce.src[1:] if r is not first)
    buffer = new_buffer(reduce.dtype, pieces * outputs)
    place = place_of(nest.loops)
    again = UOp.range(pieces, next(ids), AxisType.REDUCE)
    total = reduce.replace(src=(buffer.index(simplified(again * outputs + place)), again))
    return [
        Nest(
            (piece, *nest.loops),
            buffer,
            simplified(piece * outputs + place),
            simplified(reduce.replace(src=(part, rest, *others))),
        ),
        Nest(nest.loops, nest.target, nest.index, nest.value.substitute({reduce: total})),
    ]


def shape_loops(sink: UOp) -> UOp:
    """The kernel with its loops rearranged. Results change by the rounding of sums only."""
    for shape in (_order_reductions, _accumulate_columns, _tile, _several_accumulators):
        sink = shape(sink)
    return sink


# --- loops ---


def _divisor(n: int, limit: int) -> int:
    """The largest divisor of n up to the limit."""
    return next(d for d in range(min(n, max(limit, 1)), 0, -1) if n % d == 0)


def _shortened(loop: UOp, steps: int) -> UOp:
    """In its place among the others: parts of a loop that was split share a number."""
    return loop.replace(src=(UOp.const(steps),), arg=(*loop.arg[:-1], AxisType.WEAK))


def _new_ids(sink: UOp) -> "itertools.count[int]":
    used = (u.arg[0] for u in sink.toposort() if u.op is Ops.RANGE)
    return itertools.count(1 + max(used, default=0))


def _only_nest(sink: UOp) -> tuple[UOp, list[UOp]] | None:
    """(body, loops from the outside in) where the kernel is one nest of loops."""
    ends = [u for u in sink.toposort() if u.op is Ops.END]
    if len(ends) != 1 or sink.src != (ends[0],):
        return None
    return ends[0].src[0], sorted(ends[0].src[1:], key=lambda r: r.arg)


# --- reductions over several loops ---


def _order_reductions(sink: UOp) -> UOp:
    """Of the loops of a reduction the one with the shortest steps goes innermost."""
    ids = _new_ids(sink)
    renamed: dict[UOp, UOp] = {}
    for reduce in (u for u in sink.toposort() if u.op is Ops.REDUCE):
        steps = {
            loop: sum(abs(stride(load, loop) or 0) for load in loads(reduce.src[0]))
            for loop in sorted(reduce.src[1:], key=lambda r: r.arg)
        }
        ordered = sorted(steps.values(), reverse=True) == list(steps.values())
        if not ordered and not renamed.keys() & steps:
            for loop in sorted(steps, key=lambda r: -steps[r]):
                renamed[loop] = loop.replace(arg=(next(ids), *loop.arg[1:]))
    return substituted(sink, renamed)


# --- reductions over rows of a matrix ---


def _accumulate_columns(sink: UOp) -> UOp:
    """out[c] = sum over r of x[r, c] reads x by rows, and adds each to a row of accumulators."""
    ids = _new_ids(sink)
    while ends := [u for u in sink.toposort() if u.op is Ops.END and u.tag != _SHAPED]:
        end = ends[0]
        around = end.src[0].toposort(gate=lambda u: u.op is not Ops.AFTER)
        innermost = not any(u.op is Ops.END for u in around)
        shaped = _columns(end, ids) if innermost else end
        sink = substituted(sink, {end: shaped.replace(tag=_SHAPED)})
    return sink


_SHAPED = "shaped"


def _columns(end: UOp, ids: "itertools.count[int]") -> UOp:
    body, loops = end.src[0], sorted(end.src[1:], key=lambda r: r.arg)
    column = loops[-1]
    reduces = [u for u in body.toposort() if u.op is Ops.REDUCE and column in u.src[0].ranges]
    if not reduces or extent(column) < 8 or not is_contiguous_along(column, reduces):
        return end
    if any(loop in inner.ranges for r in reduces for loop in r.src[1:] for inner in reduces):
        return end  # a reduction of reductions
    width = _divisor(extent(column), MAX_COLUMNS)
    if width < 16:
        width = extent(column)
    if width > 16 * MAX_COLUMNS:
        return end
    block = _shortened(column, extent(column) // width)
    inside = tuple(r for r in (*loops[:-1], block) if extent(r) > 1)
    outside = (*end.ranges, *inside)
    filled: dict[UOp, UOp] = {}

    def at(u: UOp, lane: UOp) -> UOp:
        """u for column `lane` of the block."""
        ready = u.substitute({r: fill(r).index(lane) for r in _outermost(u, reduces)})
        return substituted(ready, {column: simplified(block * width + lane)})

    def fill(reduce: UOp) -> UOp:
        """The accumulators of the block, after the loops that fill them."""
        if reduce not in filled:
            start, lane = (UOp.range(width, next(ids), AxisType.WEAK) for _ in range(2))
            slot = _COLUMN_SLOTS + next(ids)
            row = UOp.placeholder((width,), reduce.dtype, slot, AddrSpace.LOCAL)
            nothing = UOp.const(identity_element(reduce.arg[0], reduce.dtype), reduce.dtype)
            clear = row.after(*outside).index(start).store(nothing).end(start)
            parts, rest = _unrolled(reduce, next(ids))
            running = row.after(clear, *rest).index(lane)
            total = running
            for part in parts:
                total = total.alu(reduce.arg[0], at(part, lane))
            filled[reduce] = row.after(running.store(total).end(lane).end(*rest))
        return filled[reduce]

    lane = UOp.range(width, next(ids), AxisType.WEAK)
    whole: UOp = at(body, lane).end(lane).end(*inside)
    return whole


def _outermost(u: UOp, reduces: list[UOp]) -> list[UOp]:
    """Those reductions in u that are not inside another."""
    around = u.toposort(gate=lambda x: x not in reduces)
    return [r for r in reduces if r is u or any(r in x.src for x in around)]


def _unrolled(reduce: UOp, number: int) -> tuple[list[UOp], tuple[UOp, ...]]:
    """What to combine in one step, and the loops that are left."""
    last = max(reduce.src[1:], key=lambda r: r.arg)
    steps = math.gcd(extent(last), ROWS_AT_ONCE)
    fewer = UOp.range(extent(last) // steps, number, AxisType.REDUCE)
    parts = [reduce.src[0].substitute({last: fewer * steps + k}) for k in range(steps)]
    return parts, (*(r for r in reduce.src[1:] if r is not last), fewer)


# --- transposes ---


def _tile(sink: UOp) -> UOp:
    """Memory that is contiguous along an outer loop is read in squares, through a local buffer."""
    nest = _only_nest(sink)
    if nest is None or any(u.op is Ops.REDUCE for u in sink.toposort()):
        return sink
    body, loops = nest
    inner = loops[-1]
    crossing = {
        access: outer
        for outer in loops[:-1]
        for access in loads(body)
        if stride(access, outer) == 1 and stride(access, inner) not in (0, 1)
    }
    if not crossing:
        return sink
    outer = max(crossing.values(), key=lambda r: r.arg)
    pair = (outer, inner)
    sizes = [_divisor(extent(r), TILE) for r in pair]
    if min(sizes) < 8:
        return sink
    ids = _new_ids(sink)
    counts = [(r, extent(r) // n) for r, n in zip(pair, sizes, strict=True)]
    tiles = [_shortened(r, n) for r, n in counts]
    around = tuple(r for r in (*(x for x in loops if x not in pair), *tiles) if extent(r) > 1)

    def inside(u: UOp, places: list[UOp]) -> UOp:
        steps = zip(pair, tiles, sizes, places, strict=True)
        return substituted(u, {r: tile * size + place for r, tile, size, place in steps})

    place = [UOp.range(n, next(ids), AxisType.WEAK) for n in sizes]
    copies: dict[UOp, UOp] = {}
    stores = {u.src[0] for u in body.toposort() if u.op is Ops.STORE}
    for load in (u for u, r in crossing.items() if r is outer and u not in stores):
        square = UOp.placeholder(
            (sizes[0] * sizes[1],), load.dtype, _TILE_SLOTS + len(copies), AddrSpace.LOCAL
        )
        column, row = (UOp.range(n, next(ids), AxisType.WEAK) for n in reversed(sizes))
        to = square.after(*around).index(row * sizes[1] + column)
        copied = square.after(to.store(inside(load, [row, column])).end(row).end(column))
        copies[load] = copied.index(place[0] * sizes[1] + place[1])
    return sink_of(inside(substituted(body, copies), place).end(*place).end(*around))


# --- reductions along a row ---


def _several_accumulators(sink: UOp) -> UOp:
    """A cheap reduction waits for its last addition: four quarters of the row at once do not."""
    reduces = [u for u in sink.toposort() if u.op is Ops.REDUCE and _is_cheap(u)]
    fewer: dict[UOp, UOp] = {}
    ids = _new_ids(sink) if reduces else itertools.count()
    for reduce in reduces:
        last = max(reduce.src[1:], key=lambda r: r.arg)
        if last not in fewer and extent(last) % ACCUMULATORS == 0 and extent(last) >= FAR_APART:
            fewer[last] = UOp.range(extent(last) // ACCUMULATORS, next(ids), AxisType.REDUCE)
    for reduce in reduces:
        last = max(reduce.src[1:], key=lambda r: r.arg)
        if last in fewer:
            sink = sink.substitute({reduce: _quarters(reduce, last, fewer[last])})
    return sink


def _quarters(reduce: UOp, last: UOp, quarter: UOp) -> UOp:
    others = tuple(r for r in reduce.src[1:] if r is not last)
    parts = [
        reduce.replace(
            src=(reduce.src[0].substitute({last: quarter + k * extent(quarter)}), *others, quarter)
        )
        for k in range(ACCUMULATORS)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total.alu(reduce.arg[0], part)
    return total


def _is_cheap(reduce: UOp) -> bool:
    inside = reduce.src[0].toposort(gate=lambda u: u.op not in (Ops.REDUCE, Ops.AFTER))
    calls = any(c_math.is_function(called_name(u) or "") for u in inside)
    loads = sum(u.op is Ops.INDEX for u in inside)
    return not calls and loads <= 3 and reduce.dtype in (dtypes.float32, dtypes.float64)
