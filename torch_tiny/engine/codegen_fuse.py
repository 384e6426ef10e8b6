"""Fuses kernels into one loop over rows: what a row needs of another kernel stays in cache.

A kernel of the schedule is a nest of loops around one store. Kernels whose outer loops run over the
same rows, and that read of each other only what the same row wrote, become one kernel.
"""

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch_tiny.engine.codegen_nest import Nest, digits_of
from torch_tiny.uops import AddrSpace, AxisType, Ops, UOp, simplified, sink_of, substituted
from torch_tiny.uops.cascade import extent

MAX_ROW_BYTES = 1 << 18  # of one row buffer
MAX_STACK_BYTES = 1 << 20  # of all of them: that is where they live
MAX_ROW_ELEMENTS = 1 << 18  # rows beyond this gain nothing from staying together
MIN_ROWS = 8
MAX_BUFFERS = 24


@dataclass(frozen=True)
class Limits:
    """What a machine can make use of."""

    stack_bytes: int = MAX_STACK_BYTES  # of a row, kept beside its kernel
    few_rows: int = 0  # if there are fewer, rows must not be longer than
    short_row: int = 0


def fuse(nests: Sequence[Nest], kept: set[int], limits: Limits = Limits()) -> list[UOp]:
    """SINKs of fused kernels, in order. kept: slots of buffers that exist outside of the region."""
    groups = _group(nests, limits)
    readers: dict[UOp, set[int]] = {}
    for number, group in enumerate(groups):
        for nest in group.nests:
            for load in nest.loads:
                readers.setdefault(load.src[0], set()).add(number)
    sinks = []
    for number, group in enumerate(groups):
        inside = {
            nest.target
            for nest in group.nests
            if nest.target.arg.slot not in kept and readers.get(nest.target, set()) <= {number}
        }
        alone = len(group.nests) == 1
        sinks.append(group.nests[0].sink() if alone else _build(group, inside, limits.stack_bytes))
    return sinks


def without_copies(
    nests: Sequence[Nest], kept: set[int]
) -> tuple[dict[Nest, Nest], dict[UOp, UOp]]:
    """What is copied whole from a temporary to a kept buffer is written there to begin with.

    The nests that are left, by what they were, and where temporaries went.
    """
    homes: dict[UOp, UOp] = {}
    copies: list[Nest] = []
    for nest in nests:
        source = nest.value.src[0] if nest.value.op is Ops.INDEX else nest.target
        if (
            source.op is Ops.PARAM
            and source.arg.slot not in kept
            and source not in homes
            and nest.target.arg.slot in kept
            and nest.value.src[1] is nest.index
            and source.max_numel() == nest.target.max_numel()
        ):
            homes[source] = nest.target
            copies.append(nest)
    left = {
        n: Nest(n.loops, homes.get(n.target, n.target), n.index, n.value.substitute(homes))
        for n in nests
        if n not in copies
    }
    return left, homes


# --- which kernels go together ---


@dataclass
class _Group:
    nests: list[Nest]
    rows: int
    buffers: set[UOp]

    def add(self, nest: Nest, rows: int) -> None:
        self.nests.append(nest)
        self.rows = rows
        self.buffers |= {nest.target, *(u.src[0] for u in nest.loads)}


def _group(nests: Sequence[Nest], limits: Limits) -> list[_Group]:
    groups: list[_Group] = []
    where: dict[UOp, int] = {}  # target -> its group
    for nest in nests:
        earliest = max((where.get(u.src[0], 0) for u in nest.loads), default=0)
        for number in range(len(groups) - 1, earliest - 1, -1):
            rows = _common_rows(groups[number], nest, limits)
            if rows:
                groups[number].add(nest, rows)
                where[nest.target] = number
                break
        else:
            where[nest.target] = len(groups)
            groups.append(_Group([], 0, set()))
            groups[-1].add(nest, 0)
    return groups


def _common_rows(group: _Group, nest: Nest, limits: Limits) -> int:
    """The finest rows that the group and the nest can share; 0 if they should not."""
    theirs, read = group.buffers, {u.src[0] for u in nest.loads}
    if not theirs & read or len(theirs | read) >= MAX_BUFFERS:
        return 0
    # What the outermost loops count together, for one of them, two and so on.
    counts = (set(itertools.accumulate(n.extents, operator.mul)) for n in (nest, *group.nests))
    common: set[int] = set.intersection(*counts)
    for rows in sorted(common, reverse=True):
        if group.rows and rows > group.rows:
            continue  # its kernels read each other's rows of this size
        widest = max(n.size // rows for n in (*group.nests, nest))
        if rows < MIN_ROWS or widest > MAX_ROW_ELEMENTS:
            return 0
        if rows < limits.few_rows and widest > limits.short_row:
            return 0
        if _keeps_columns((*group.nests, nest), rows) and _share(group.nests, nest, rows):
            return rows
    return 0


def _keeps_columns(nests: Sequence[Nest], rows: int) -> bool:
    """Sums of columns want the columns innermost, which is not so where a column is a row."""
    whole = [n.size == rows for n in nests]
    return all(whole) or not any(n.sums_columns and w for n, w in zip(nests, whole, strict=True))


def _share(nests: Sequence[Nest], nest: Nest, rows: int) -> bool:
    """Whether `nest` may join (reads only its own row of what the others write) and gains by it."""
    row = UOp.range(rows, -2)
    written = {n.target: n for n in nests}
    mine = _row_loads(nest, row)
    gains = False
    for load, is_local in mine:
        if load.src[0] in written:
            if not is_local or not _stores_row(written[load.src[0]], row):
                return False
            gains = True
    if gains:
        return True
    read = {load.src[0] for load, is_local in mine if is_local}
    theirs = (entry for other in nests for entry in _row_loads(other, row))
    return any(is_local and load.src[0] in read for load, is_local in theirs)


@functools.lru_cache(maxsize=256)
def _row_loads(nest: Nest, row: UOp) -> list[tuple[UOp, bool]]:
    """Each load, and whether it stays within the part of its buffer that belongs to the row."""
    digits = _digits(nest, row)[0]
    return [(u, _is_of_row(u.src[0], substituted(u.src[1], digits), row)) for u in nest.loads]


@functools.lru_cache(maxsize=256)
def _stores_row(nest: Nest, row: UOp) -> bool:
    return _is_of_row(nest.target, substituted(nest.index, _digits(nest, row)[0]), row)


def _is_of_row(buffer: UOp, index: UOp, row: UOp) -> bool:
    width, rest = divmod(buffer.max_numel(), extent(row))
    return rest == 0 and simplified(index.get_idx() // width) is row


def _digits(nest: Nest, row: UOp) -> tuple[dict[UOp, UOp], tuple[UOp, ...]]:
    """The outer loops in terms of `row`, and the loops that are left inside a row."""
    rows, count, outer = extent(row), 1, []
    for loop in nest.loops:
        if count == rows:
            break
        outer.append(loop)
        count *= extent(loop)
    return digits_of(outer, row), nest.loops[len(outer) :]


# --- the fused kernel ---


@dataclass
class _Body:
    """A loop nest inside the row. writes: target -> (index, value)."""

    loops: tuple[UOp, ...]
    writes: dict[UOp, tuple[UOp, UOp]] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)  # bodies that must be complete before


class _Fusion:
    """Builds one kernel. Reads of a row that is written here first go through stand-in PARAMs."""

    def __init__(self, row: UOp, inside: set[UOp], stack_bytes: int) -> None:
        self.row, self.inside, self.stack_bytes = row, inside, stack_bytes
        self.scalars: dict[UOp, tuple[UOp, UOp]] = {}  # target -> (index, value), one per row
        self.bodies: list[_Body] = []
        self.body_of: dict[UOp, int] = {}
        self.stand_in: dict[UOp, UOp] = {}  # stand-in -> target
        self.ends: dict[int, UOp] = {}
        self.rows_in_memory: dict[UOp, UOp] = {}

    def add(self, nest: Nest) -> None:
        digits, inner = _digits(nest, self.row)
        index, value = (simplified(u.substitute(digits)) for u in (nest.index, nest.value))
        scalars = self._loads_of(value, self.scalars)
        value = substituted(value, {u: _gated(u, self.scalars[u.src[0]][1]) for u in scalars})
        if not inner:
            self.scalars[nest.target] = (index, self._read_rows(value, set()))
            return
        number = self._joinable(value, inner)
        if number is None:
            number = len(self.bodies)
            self.bodies.append(_Body(inner))
        body = self.bodies[number]
        loops = dict(zip(inner, body.loops, strict=True))
        index, value = (u.substitute(loops) for u in (index, value))
        value = self._read_rows(self._read_pointwise(value, body), {number})
        body.writes[nest.target] = (index, value)
        body.after |= self._needs(value)
        self.body_of[nest.target] = number

    def sink(self) -> UOp:
        stores = [
            target.index(index).store(self._resolve(value))
            for target, (index, value) in self.scalars.items()
            if target not in self.inside
        ]
        ends = [self._end(number) for number in range(len(self.bodies))]
        return sink_of(UOp.group(*stores, *(e for e in ends if e.src)).end(self.row))

    # reads

    def _loads_of(self, value: UOp, targets: Iterable[UOp]) -> list[UOp]:
        wanted = set(targets)
        return [u for u in value.toposort() if u.op is Ops.INDEX and u.src[0] in wanted]

    def _read_pointwise(self, value: UOp, body: _Body) -> UOp:
        found = {u: body.writes[u.src[0]] for u in self._loads_of(value, body.writes)}
        same = {u: v for u, (i, v) in found.items() if simplified(u.src[1]) is i}
        return substituted(value, same)

    def _read_rows(self, value: UOp, here: set[int]) -> UOp:
        replaced = {}
        for u in self._loads_of(value, self.body_of):
            assert self.body_of[u.src[0]] not in here
            mark = u.src[0].replace(tag=("row",))
            self.stand_in[mark] = u.src[0]
            replaced[u] = u.replace(src=(mark, *u.src[1:]))
        return substituted(value, replaced)

    def _needs(self, value: UOp) -> set[int]:
        """The bodies whose complete rows `value` reads."""
        marks = {self.stand_in[u] for u in value.toposort() if u in self.stand_in}
        direct = {self.body_of[target] for target in marks}
        return direct.union(*(self.bodies[number].after for number in direct))

    def _joinable(self, value: UOp, inner: tuple[UOp, ...]) -> int | None:
        """A loop nest that can compute `value` too: same extents, and not waiting for its end."""
        needs = self._needs(value)
        read = {self.body_of[u.src[0]] for u in self._loads_of(value, self.body_of)}
        for number, body in enumerate(self.bodies):
            if [r.vmax for r in body.loops] != [r.vmax for r in inner] or number in needs:
                continue
            # Whatever else is read must not itself wait for this body.
            others = read - {number}
            if any(n > number for n in others | needs):
                continue
            if any(number in self.bodies[n].after for n in others):
                continue
            loops = dict(zip(inner, body.loops, strict=True))
            shifted = value.substitute(loops)
            left = self._loads_of(self._read_pointwise(shifted, body), body.writes)
            if not left:
                return number
        return None

    # writes

    def _end(self, number: int) -> UOp:
        if number not in self.ends:
            body = self.bodies[number]
            stores = []
            for target, (index, value) in body.writes.items():
                resolved = self._resolve(value)
                if target not in self.inside:
                    stores.append(target.index(index).store(resolved))
                elif target in self.stand_in.values():
                    memory, place = self._memory(target, index)
                    stores.append(memory.index(place).store(resolved))
            self.ends[number] = UOp.group(*stores).end(*body.loops) if stores else UOp.group()
        return self.ends[number]

    def _memory(self, target: UOp, index: UOp) -> tuple[UOp, UOp]:
        """Where the target's row lives while the row is being computed, and the index there."""
        size = target.max_numel() // extent(self.row)
        bytes_ = size * target.dtype.itemsize
        if target not in self.inside or bytes_ > MAX_ROW_BYTES:
            return target, index
        if target not in self.rows_in_memory:
            taken = sum(b.max_numel() * b.dtype.itemsize for b in self.rows_in_memory.values())
            if taken + bytes_ > self.stack_bytes:
                return target, index
            slot = len(self.rows_in_memory)
            self.rows_in_memory[target] = UOp.placeholder(
                (size,), target.dtype, slot, AddrSpace.LOCAL
            )
        return self.rows_in_memory[target], simplified(index - self.row * size)

    def _resolve(self, value: UOp) -> UOp:
        """Stand-ins become loads that come after the loop that writes them."""
        replaced = {}
        for u in self._loads_of(value, self.stand_in):
            target = self.stand_in[u.src[0]]
            memory, index = self._memory(target, u.src[1])
            end = self._end(self.body_of[target])
            replaced[u] = memory.after(end).index(index)
        return substituted(value, replaced)


def _gated(load: UOp, value: UOp) -> UOp:
    valid = load.src[1].get_valid()
    return value if valid.op is Ops.CONST else valid.where(value, value.const_like(0))


def _build(group: _Group, inside: set[UOp], stack_bytes: int) -> UOp:
    first = 1 + max(r.arg[0] for nest in group.nests for r in nest.loops)
    row = UOp.range(group.rows, first + 100_000, AxisType.WEAK)
    fusion = _Fusion(row, inside, stack_bytes)
    for nest in group.nests:
        fusion.add(nest)
    return fusion.sink()
