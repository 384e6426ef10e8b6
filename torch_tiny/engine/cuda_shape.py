"""Maps the loops of a kernel to blocks and threads of a GPU.

flat: a thread computes one element, or the few that one wide load brings.
rows: a group of threads shares a row: its loops and its reductions. What it reads twice it keeps.
columns: 32 neighbouring results per block, each reduced by a column of threads.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from torch_tiny.engine.codegen_nest import MEMORY, digits_of, is_contiguous_along
from torch_tiny.linalg.kernel import COMBINE
from torch_tiny.uops import (
    AddrSpace,
    AxisType,
    Ops,
    UOp,
    combined,
    dtypes,
    new_numbers,
    simplified,
    sink_of,
    substituted,
)
from torch_tiny.uops.cascade import cascaded, extent

FLAT_THREADS = 256
WARP = 32
MOST_THREADS = 1024
ROWS_PER_BLOCK = 4  # where a warp has a row to itself
WIDEST_LOAD = 16  # bytes
CHUNKS_PER_THREAD = 4  # of a row, where there are rows enough to fill the GPU
MANY_ROWS = 1024
SHORT = 16  # a reduction of fewer elements is one thread's
KEPT_BYTES = 1 << 17  # of a row, in the registers of its threads
MOST_KEPT_BYTES = 256  # by one of them

# What the loops of a shaped kernel mean to the renderer:
ACROSS, THREADS, LANES, WIDE = (
    AxisType.GLOBAL,
    AxisType.LOCAL,
    AxisType.UNROLL,
    AxisType.UPCAST,
)
REGISTER_SLOTS, ROW_SLOTS = 3_000_000, 4_000_000


class CannotShapeError(Exception):
    """The kernel has loops that these ways do not fit."""


@dataclass(frozen=True)
class Launch:
    """How a kernel runs. group: threads that share a row, a column or a matrix of a routine."""

    way: str
    grid: int
    block: tuple[int, int]
    group: int = 1
    count: int = 0  # of a flat kernel's threads that have something to do

    @property
    def is_by_rows(self) -> bool:
        """Whether threadIdx.x counts the group's threads and threadIdx.y the groups."""
        return self.way in ("rows", "group")


class Shape:
    """Rearranges one kernel; how it has to be launched is known afterwards."""

    def __init__(self) -> None:
        self.launch = Launch("flat", 1, (1, 1))

    def __call__(self, sink: UOp) -> UOp:
        return cascaded(self._mapped(sink))

    def _mapped(self, sink: UOp) -> UOp:
        if len(sink.src) != 1 or sink.src[0].op is not Ops.END:
            if sink.op_in_backward_slice_with_self(Ops.END):
                raise CannotShapeError("several nests of loops")
            return self._alone(sink)
        end = sink.src[0]
        reduces = [u for u in sink.toposort() if u.op is Ops.REDUCE]
        loops = sorted(end.src[1:], key=lambda r: r.arg)
        if end.src[0].op_in_backward_slice_with_self(Ops.END):
            return self._rows(end, loops)
        if not reduces:
            return self._flat(end, loops)
        length = max(math.prod(extent(r) for r in u.src[1:]) for u in reduces)
        outputs = math.prod(extent(r) for r in loops)
        if length < SHORT and outputs > MANY_ROWS:
            return self._flat(end, loops)
        try:
            if is_contiguous_along(loops[-1], reduces):
                return self._columns(end, loops, length)
            return self._rows(end, loops)
        except CannotShapeError:
            return self._flat(end, loops)

    def _alone(self, sink: UOp) -> UOp:
        """One result: a row of its own, unless there is nothing to share."""
        try:
            return self._rows(sink, [])
        except CannotShapeError:
            self.launch = Launch("flat", 1, (1, 1))
            return sink

    def _flat(self, end: UOp, loops: list[UOp]) -> UOp:
        total = math.prod(extent(r) for r in loops)
        builder = _Builder(new_numbers(end))
        has_reduce = end.op_in_backward_slice_with_self(Ops.REDUCE)
        width = 1 if has_reduce else _width(end, loops, 1)
        scope = builder.scope(loops, width, ACROSS)
        count = total // width
        threads = min(FLAT_THREADS, _power_of_two(count))
        self.launch = Launch("flat", -(-count // threads), (threads, 1), count=count)
        return sink_of(builder.rebuilt(end, {end: scope}))

    def _rows(self, end: UOp, loops: list[UOp]) -> UOp:
        builder = _Builder(new_numbers(end))
        inner = [u for u in end.toposort() if u.op is Ops.END and u is not end]
        cooperative = _cooperative(end, loops)
        if not inner and not cooperative:
            raise CannotShapeError("nothing to share")
        rows = math.prod(extent(r) for r in loops)
        shared = {u: _loops_of(u) for u in (*inner, *cooperative)}
        owners: dict[UOp, tuple[UOp, ...]] = {}
        for mine in shared.values():
            if any(owners.setdefault(r, mine) != mine for r in mine) or set(mine) & set(loops):
                raise CannotShapeError("loops that are shared in different ways")
        scopes: dict[tuple[UOp, ...], _Scope] = {}
        for mine in shared.values():
            if mine not in scopes:
                users = [x for x, own in shared.items() if own == mine]
                width = min(_width(x, list(mine), WARP) for x in users)
                scopes[mine] = builder.scope(mine, width, THREADS)
        chunks = max(extent(s.steps) for s in scopes.values())
        each = CHUNKS_PER_THREAD if rows >= MANY_ROWS else 1
        group = max(WARP, min(MOST_THREADS, _power_of_two(-(-chunks // each))))
        together = ROWS_PER_BLOCK if group == WARP and rows >= MANY_ROWS else 1
        self.launch = Launch("rows", -(-rows // together), (group, together), group)
        across = builder.scope(loops, 1, ACROSS) if loops else None
        by_node = {u: scopes[mine] for u, mine in shared.items()}
        builder.keep_rows(end, by_node, group, across.digits if across is not None else {})
        if across is not None:
            by_node[end] = across
        built = builder.rebuilt(end, by_node)
        return built if built.op is Ops.SINK else sink_of(built)

    def _columns(self, end: UOp, loops: list[UOp], length: int) -> UOp:
        builder = _Builder(new_numbers(end))
        shared = {u: _loops_of(u) for u in _cooperative(end, loops)}
        scopes = {mine: builder.scope(mine, 1, THREADS) for mine in dict.fromkeys(shared.values())}
        taken = Counter(r for mine in scopes for r in mine)
        if not shared or max(taken.values()) > 1:
            raise CannotShapeError("reductions that share some of their loops")
        by_node = {u: scopes[mine] for u, mine in shared.items()}
        total = math.prod(extent(r) for r in loops)
        group = WARP if length >= 8 * WARP else 8
        self.launch = Launch("columns", -(-total // WARP), (WARP, group), group)
        by_node[end] = builder.scope(loops, 1, ACROSS)
        return sink_of(builder.rebuilt(end, by_node))


def _cooperative(end: UOp, loops: Iterable[UOp]) -> list[UOp]:
    """Reductions that happen once per row. Those inside of other loops are a thread's own."""
    around = set(loops)
    return [u for u in end.toposort() if u.op is Ops.REDUCE and set(u.ranges) <= around]


def _loops_of(u: UOp) -> tuple[UOp, ...]:
    return tuple(sorted(u.src[1:], key=lambda r: r.arg))


def _combined(reduce: UOp, value: UOp, scope: "_Scope") -> UOp:
    if reduce.dtype == dtypes.bool:  # which is too small a number to be shuffled
        wide = reduce.replace(dtype=dtypes.int32)
        numbers = value.cast(dtypes.int32)
        return _combined(wide, numbers, scope).cast(dtypes.bool)
    own = reduce.replace(src=(value, *scope.ranges()))
    return combined(COMBINE + reduce.arg[0].name, own)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# --- wide loads ---


def _memory_accesses(u: UOp) -> list[UOp]:
    """Of u itself: what is inside of other loops of threads has its own width."""
    inside = u.src[0].toposort(gate=lambda x: x.op is not Ops.END)
    return [x for x in inside if x.op is Ops.INDEX and x.addrspace in MEMORY]


def _width(u: UOp, loops: Sequence[UOp], least_steps: int) -> int:
    """How many elements the widest load that fits its accesses brings."""
    last = loops[-1]
    sizes = [
        x.dtype.itemsize
        for x in _memory_accesses(u)
        if last in x.ranges and _step_is_one(x.src[1], last)
    ]
    width = WIDEST_LOAD // max(sizes) if sizes else 1
    total = math.prod(extent(r) for r in loops)
    while width > 1 and (extent(last) % width or total // width < least_steps):
        width //= 2
    return width


def _step_is_one(index: UOp, loop: UOp) -> bool:
    terms = list(index.split_uop(Ops.ADD))
    return terms.count(loop) == 1 and all(t is loop or loop not in t.ranges for t in terms)


@dataclass(frozen=True)
class _Scope:
    """Loops as one: position = steps * width + lane. Threads share the steps."""

    loops: tuple[UOp, ...]
    steps: UOp
    lane: UOp | None
    width: int
    digits: dict[UOp, UOp]

    def position(self) -> UOp:
        return self.steps if self.lane is None else self.steps * self.width + self.lane

    def ranges(self) -> tuple[UOp, ...]:
        return (self.steps,) if self.lane is None else (self.steps, self.lane)


@dataclass
class _Builder:
    ids: "itertools.count[int]"
    kept: dict[UOp, UOp] = field(default_factory=dict)  # load -> what replaces it

    def scope(self, loops: Sequence[UOp], width: int, kind: AxisType) -> _Scope:
        total = math.prod(extent(r) for r in loops)
        steps = UOp.range(total // width, next(self.ids), kind)
        lane = UOp.range(width, next(self.ids), LANES) if width > 1 else None
        place = steps if lane is None else steps * width + lane
        return _Scope(tuple(loops), steps, lane, width, digits_of(loops, place))

    def rebuilt(self, root: UOp, scopes: dict[UOp, _Scope]) -> UOp:
        """`root` with the loops of its ENDs and REDUCEs mapped as scopes[node] says."""
        new = {r: d for scope in scopes.values() for r, d in scope.digits.items()} | self.kept
        lanes = {s.lane: s for s in scopes.values() if s.lane is not None}
        targets = {u.src[0] for u in root.toposort() if u.op is Ops.STORE}
        for u in root.toposort():
            if u in new:
                continue
            moved = u.replace(src=tuple(new[s] for s in u.src)) if u.src else u
            if u.op is Ops.INDEX and u.addrspace in MEMORY and u not in targets:
                moved = self._loaded(moved, lanes)
            elif u in scopes and u.op is Ops.REDUCE:
                moved = _combined(u, new[u.src[0]], scopes[u])
            elif u in scopes:
                moved = self._stored(new[u.src[0]], scopes[u])
            new[u] = moved
        return new[root]

    def _loaded(self, load: UOp, lanes: dict[UOp, _Scope]) -> UOp:
        index = simplified(load.src[1])
        load = load.replace(src=(load.src[0], index))
        mine = [lanes[r] for r in index.ranges if r in lanes]
        if len(mine) != 1 or not self._is_wide(index, mine[0]):
            return load
        scope = mine[0]
        assert scope.lane is not None
        registers = self._registers(scope.width, load)
        wide = UOp.range(scope.width, next(self.ids), WIDE)
        copy = registers.index(wide).store(substituted(load, {scope.lane: wide})).end(wide)
        return cast(UOp, registers.after(copy).index(scope.lane))

    def _stored(self, body: UOp, scope: _Scope) -> UOp:
        if scope.lane is None:
            return cast(UOp, body.end(scope.steps))
        effects = body.src if body.op is Ops.GROUP else (body,)
        inside: list[UOp] = []
        later: list[tuple[UOp, UOp]] = []
        for effect in effects:
            if effect.op is not Ops.STORE:
                raise CannotShapeError(f"{effect.op} among stores")
            target, value = effect.src[:2]
            index = simplified(target.src[1])
            if not self._is_wide(index, scope):
                inside.append(effect)
                continue
            registers = self._registers(scope.width, target)
            inside.append(registers.index(scope.lane).store(value))
            later.append((target.replace(src=(target.src[0], index)), registers))
        done = UOp.group(*inside).end(scope.lane)
        copies = []
        for target, registers in later:
            wide = UOp.range(scope.width, next(self.ids), WIDE)
            to = substituted(target, {scope.lane: wide})
            copies.append(to.store(registers.after(done).index(wide)).end(wide))
        return cast(UOp, UOp.group(done, *copies).end(scope.steps))

    def _is_wide(self, index: UOp, scope: _Scope) -> bool:
        """Whether the lanes' accesses are one: side by side, and from a multiple of their count."""
        if scope.lane is None or index.get_valid().op is not Ops.CONST:
            return False
        is_looped = any(r.arg[-1] in (AxisType.REDUCE, AxisType.WEAK) for r in index.ranges)
        if is_looped or index.op_in_backward_slice_with_self(Ops.INDEX):
            return False
        rest = (t for t in index.split_uop(Ops.ADD) if t is not scope.lane)
        aligned = all(t.divides(scope.width) is not None for t in rest)
        return aligned and _step_is_one(index, scope.lane)

    def _registers(self, count: int, like: UOp) -> UOp:
        slot = REGISTER_SLOTS + next(self.ids)
        return cast(UOp, UOp.placeholder((count,), like.dtype, slot, AddrSpace.REG))

    # rows in registers

    def keep_rows(
        self, root: UOp, scopes: dict[UOp, _Scope], group: int, row: dict[UOp, UOp]
    ) -> None:
        """Loads that several loops of a row make at the same positions are made once."""
        written = {u.src[0].buf_uop for u in root.toposort() if u.op is Ops.STORE}
        found: dict[UOp, list[tuple[UOp, _Scope]]] = {}
        canon: dict[tuple[int, int], _Scope] = {}
        for u, scope in scopes.items():
            shape = (extent(scope.steps), scope.width)
            first = canon.setdefault(shape, scope)
            same = dict(zip(scope.ranges(), first.ranges(), strict=True))
            for load in _memory_accesses(u):
                buffer, place = load.src
                inner = set(load.ranges) & set(scope.loops)
                others = set(load.ranges) - inner
                if not inner or any(r.arg[-1] is AxisType.REDUCE for r in others):
                    continue
                if buffer.op is not Ops.PARAM or buffer in written:
                    continue
                if place.op_in_backward_slice_with_self(Ops.INDEX):
                    continue
                index = simplified(substituted(place, {**row, **scope.digits}))
                key = buffer.index(substituted(index, same))
                entries = found.setdefault(key, [])
                if (load, scope) not in entries:
                    entries.append((load, scope))
        room = min(KEPT_BYTES // group, MOST_KEPT_BYTES)
        for key, entries in found.items():
            mine = {id(scope) for _, scope in entries}
            size = -(-extent(entries[0][1].steps) // group) * entries[0][1].width
            size *= key.dtype.itemsize
            if len(mine) < 2 or size > room:
                continue
            room -= size
            self._keep(key, entries, group, canon)

    def _keep(
        self,
        key: UOp,
        entries: list[tuple[UOp, _Scope]],
        group: int,
        canon: dict[tuple[int, int], _Scope],
    ) -> None:
        width = entries[0][1].width
        steps = extent(entries[0][1].steps)
        like = canon[steps, width]
        trips = -(-steps // group)
        row = UOp.placeholder(
            (trips * width,), key.dtype, ROW_SLOTS + next(self.ids), AddrSpace.REG
        )
        fill = self.scope([UOp.range(steps * width, next(self.ids))], width, THREADS)
        same = dict(zip(like.ranges(), fill.ranges(), strict=True))
        source = substituted(key, same)
        if fill.lane is not None and self._is_wide(simplified(source.src[1]), fill):
            wide = UOp.range(width, next(self.ids), WIDE)
            source = substituted(source, {fill.lane: wide})
            filled = row.index(fill.steps * width + wide).store(source).end(wide).end(fill.steps)
        else:
            filled = row.index(fill.position()).store(source).end(*fill.ranges())
        for load, scope in entries:
            self.kept[load] = row.after(filled).index(scope.position())
