"""Loop shapes that gcc makes fast code of: contiguous inner loops, tiles, many accumulators."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

from torch_tiny.engine import c_math
from torch_tiny.engine.codegen_nest import is_contiguous_along, loads
from torch_tiny.uops import (
    AddrSpace,
    AxisType,
    Ops,
    UOp,
    called_name,
    dtypes,
    identity_element,
    new_numbers,
    simplified,
    sink_of,
    stride,
    substituted,
)
from torch_tiny.uops.cascade import CHAIN, cascaded, extent, is_rounded, levels_of

ACCUMULATORS = 4  # hide the latency of an addition
FAR_APART = 16384  # within a page, several streams of loads confuse the prefetcher
MAX_COLUMNS = 1024  # accumulated side by side, in the first-level cache
ROWS_AT_ONCE = 8  # added to the columns in one step, so that they are loaded and stored less often
TILE = 32
MOST_WRITTEN_OUT = 9  # elements of a reduction without a loop
MOST_WRITTEN_NODES = 64  # of what it reduces
BLOCK_BYTES = 1024  # of a sum: a chain of 32 additions for each lane of a vector

# Local buffers are told apart by number; those of codegen_fuse start at 0.
_COLUMN_SLOTS, _TILE_SLOTS = 1_000_000, 2_000_000


def shape_loops(sink: UOp) -> UOp:
    """The kernel with its loops rearranged. Results change by the rounding of sums only."""
    shapes = (_write_out, _order_reductions, _accumulate_columns, _tile, _several_accumulators)
    for shape in shapes:
        sink = shape(sink)
    return cascaded(sink, _block)


# --- loops ---


def _divisor(n: int, limit: int) -> int:
    """The largest divisor of n up to the limit."""
    return next(d for d in range(min(n, max(limit, 1)), 0, -1) if n % d == 0)


def _shortened(loop: UOp, steps: int) -> UOp:
    """In its place among the others: parts of a loop that was split share a number."""
    return loop.replace(src=(UOp.const(steps),), arg=(*loop.arg[:-1], AxisType.WEAK))


# --- reductions of a few elements ---


def _write_out(sink: UOp) -> UOp:
    """The maximum of a pooling's window, and where it is, without loops that end at once."""
    while (short := next(filter(_is_short, sink.toposort()), None)) is not None:
        loops = sorted(short.src[1:], key=lambda r: r.arg)
        places = itertools.product(*(range(extent(loop)) for loop in loops))
        parts = [
            substituted(short.src[0], dict(zip(loops, map(UOp.const, at), strict=True)))
            for at in places
        ]
        sink = substituted(sink, {short: _in_pairs(short.arg[0], parts)})
    return sink


def _is_short(u: UOp) -> bool:
    """Of integers, which a maximum of floats is one of as well: their order does not matter."""
    if u.op is not Ops.REDUCE or u.arg[0] is not Ops.MAX or u.dtype in dtypes.floats:
        return False
    loops = set(u.src[1:])
    has_ends = all(loop.src[0].op is Ops.CONST for loop in loops)
    if not has_ends or math.prod(map(extent, loops)) > MOST_WRITTEN_OUT:
        return False
    moving = [x for x in u.src[0].toposort() if loops & set(x.ranges)]
    is_simple = not any(x.op in (Ops.REDUCE, Ops.AFTER, Ops.END) for x in moving)
    return is_simple and len(moving) <= MOST_WRITTEN_NODES


# --- reductions over several loops ---


def _order_reductions(sink: UOp) -> UOp:
    """Of the loops of a reduction the one with the shortest steps goes innermost."""
    ids = new_numbers(sink)
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
    ids = new_numbers(sink)
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
            filled[reduce] = _filled(reduce, width, outside, at, ids)
        return filled[reduce]

    lane = UOp.range(width, next(ids), AxisType.WEAK)
    return cast(UOp, at(body, lane).end(lane).end(*inside))


def _outermost(u: UOp, reduces: list[UOp]) -> list[UOp]:
    """Those reductions in u that are not inside another."""
    around = u.toposort(gate=lambda x: x not in reduces)
    return [r for r in reduces if r is u or any(r in x.src for x in around)]


def _filled(
    reduce: UOp,
    width: int,
    outside: tuple[UOp, ...],
    at: Callable[[UOp, UOp], UOp],
    ids: "itertools.count[int]",
) -> UOp:
    """A row of results. Each level of a long sum has accumulators of its own."""

    def combined(row: UOp, loops: Sequence[UOp], lane: UOp, terms: Sequence[UOp]) -> UOp:
        running = row.index(lane)
        total = running.alu(reduce.arg[0], _in_pairs(reduce.arg[0], terms))
        return cast(UOp, running.store(total).end(lane).end(*loops))

    parts, loops, rest = _unrolled(reduce, next(ids))
    levels, places = levels_of(loops, CHAIN, ids) if is_rounded(reduce) else ([loops], {})
    parts = [substituted(part, places) for part in parts]
    nothing = UOp.const(identity_element(reduce.arg[0], reduce.dtype), reduce.dtype)
    below: UOp | None = None
    for number, mine in enumerate(levels):
        around = (*outside, *(r for level in levels[number + 1 :] for r in level))
        slot = _COLUMN_SLOTS + next(ids)
        row = UOp.placeholder((width,), reduce.dtype, slot, AddrSpace.LOCAL)
        start, lane = (UOp.range(width, next(ids), AxisType.WEAK) for _ in range(2))
        clear = row.after(*around).index(start).store(nothing).end(start)
        terms = [at(p, lane) for p in parts] if below is None else [below.index(lane)]
        below = row.after(combined(row.after(clear, *mine), mine, lane, terms))
    assert below is not None
    if rest:
        lane = UOp.range(width, next(ids), AxisType.WEAK)
        below = row.after(combined(below, (), lane, [at(p, lane) for p in rest]))
    return below


def _in_pairs(operator: Ops, terms: Sequence[UOp]) -> UOp:
    """Terms combined with their neighbours, and so on: rounded less often than one by one."""
    while len(terms) > 1:
        pairs = [a.alu(operator, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
    return terms[0]


def _unrolled(reduce: UOp, number: int) -> tuple[list[UOp], tuple[UOp, ...], list[UOp]]:
    """What to combine in one step, the loops that are left, and what remains after them."""
    last = max(reduce.src[1:], key=lambda r: r.arg)
    others = tuple(r for r in reduce.src[1:] if r is not last)
    most = min(extent(last), ROWS_AT_ONCE)
    steps = math.gcd(extent(last), ROWS_AT_ONCE) if others else most
    fewer = UOp.range(extent(last) // steps, number, AxisType.REDUCE)
    parts = [reduce.src[0].substitute({last: fewer * steps + k}) for k in range(steps)]
    rest = range(extent(last) // steps * steps, extent(last))
    return parts, (*others, fewer), [reduce.src[0].substitute({last: UOp.const(k)}) for k in rest]


# --- transposes ---


def _tile(sink: UOp) -> UOp:
    """Memory that is contiguous along an outer loop is read in squares, through a local buffer."""
    ends = [u for u in sink.toposort() if u.op in (Ops.END, Ops.REDUCE)]
    if len(ends) != 1 or sink.src != (ends[0],):
        return sink
    body, loops = ends[0].src[0], sorted(ends[0].src[1:], key=lambda r: r.arg)
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
    ids = new_numbers(sink)
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
    ids = new_numbers(sink) if reduces else itertools.count()
    for reduce in reduces:
        last = max(reduce.src[1:], key=lambda r: r.arg)
        if extent(last) < FAR_APART:
            continue
        if last not in fewer:
            fewer[last] = UOp.range(extent(last) // ACCUMULATORS, next(ids), AxisType.REDUCE)
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
    for k in range(ACCUMULATORS * extent(quarter), extent(last)):
        one = reduce.src[0].substitute({last: last.const_like(k)})
        parts.append(reduce.replace(src=(one, *others)) if others else one)
    return _in_pairs(reduce.arg[0], parts)


def _block(reduce: UOp) -> int:
    """Elements of a chain of additions, in each lane of a vector if the loop becomes vectors."""
    loops = set(reduce.src[1:])
    moving = (u for u in _inside(reduce) if loops & set(u.ranges))
    return CHAIN if any(map(_is_scalar, moving)) else BLOCK_BYTES // reduce.dtype.itemsize


def _is_scalar(u: UOp) -> bool:
    """Whether gcc has no vectors for it: divisions, and conversions of long integers to floats."""
    if u.op is Ops.CAST and u.dtype in dtypes.floats:
        of = u.src[0]
        is_short = of.op is Ops.INDEX and of.dtype.itemsize <= 4
        return of.dtype not in (*dtypes.floats, dtypes.bool) and not is_short
    return u.op in _DIVISIONS or c_math.is_scalar(called_name(u))


_DIVISIONS = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)


def _inside(reduce: UOp) -> list[UOp]:
    """What it adds up, without other reductions and what comes before it."""
    return list(reduce.src[0].toposort(gate=lambda u: u.op not in (Ops.REDUCE, Ops.AFTER)))


def _is_cheap(reduce: UOp) -> bool:
    inside = _inside(reduce)
    calls = any(c_math.is_function(called_name(u)) for u in inside)
    loads = sum(u.op is Ops.INDEX for u in inside)
    return not calls and loads <= 3 and reduce.dtype in (dtypes.float32, dtypes.float64)
