"""From the text of a trace to a plan: its steps, and the code of the regions among them."""

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch_tiny.engine import rows
from torch_tiny.engine.codegen import GccError, TooLongError
from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.plan import (
    Built,
    Code,
    Kernel,
    Made,
    NumberBuffer,
    Place,
    Plan,
    Remembered,
    SlotBuffer,
    digest,
)
from torch_tiny.engine.rows import lists_of
from torch_tiny.engine.target import Target, target_of
from torch_tiny.lower import NoLowering, has_lowering, is_heavy
from torch_tiny.regions import Group, group
from torch_tiny.trace import SCALAR_TYPE_NUMBERS, Call, Slot, Tensor, Trace, read_trace
from torch_tiny.uops import UOp, compiling
from torch_tiny.values import Buffer, CallError, Values, values

T = TypeVar("T")

_MOST_LISTED = 4  # tensors in a list
_NO_SHARED_LOOP = "of many tensors, which do not share a loop"


def compile_trace(
    trace: str,
    everything: bool = False,
    target: str | Target = "cpu",
    known: Remembered | None = None,
    context: str = "",
    refined: Collection[str] = (),
) -> Made:
    """The plan of a trace; what `known` has of its regions is not compiled again.

    everything: also what PyTorch's own kernels do better, such as matrix products.
    context: whatever else code depends on, such as versions; part of its keys.
    refined: keys of regions to write in other ways, too, of which the fastest is taken.
    """
    to = target_of(target) if isinstance(target, str) else target
    with compiling():
        compiler = _Compiler(read_trace(trace), everything, to, known or Remembered(), context)
        return compiler.made(refined)


@dataclass
class _Compiler:
    _trace: Trace
    _everything: bool
    _target: Target
    _known: Remembered
    _context: str
    _not_lowered: dict[str, str] = field(default_factory=dict)
    _failed: list[tuple[int, str]] = field(default_factory=list)
    _refused: set[int] = field(default_factory=set)
    _built: dict[str, Built] = field(default_factory=dict)
    _ways: "dict[str, _Written | None]" = field(default_factory=dict)
    _kinds: dict[int, Hashable] = field(default_factory=dict)
    _fresh: int = 0
    _trouble: str = ""

    def made(self, refined: Collection[str]) -> Made:
        """After calls that turned out not to be compiled were taken out of regions."""
        while True:
            groups = group(self._trace, self._belongs, self._lists)
            refused = len(self._refused)
            places = self._places(groups, refined)
            if len(self._refused) == refused:
                break
        plan = Plan(_steps(self._trace, groups), places, self._not_lowered, self._failed)
        used = {place.code: self._built[place.code] for place in places}
        return Made(plan, used, self._fresh, self._trouble)

    def _places(self, groups: list[Group], refined: Collection[str]) -> list[Place]:
        """Code is made once no call is refused any more: regions may be others then."""
        regions = [
            _Region(self._trace, one, needed_after, self._context)
            for one, needed_after in zip(groups, _needed_after(self._trace, groups), strict=True)
            if one.is_region
        ]
        refused = len(self._refused)
        new = {one.key: one for one in regions if not self._is_known(one, one.key in refined)}
        for key, one in new.items():
            if self._ways.get(key) is None:
                self._ways[key] = self._tried(one, self._written)
        if len(self._refused) == refused:
            for key, one in new.items():
                self._compile(one, self._ways[key], key in refined)
        return [
            Place(one.key, _described(one.original), one.slots, [c.number for c in one.original])
            for one in regions
        ]

    def _belongs(self, call: Call) -> bool:
        if call.number in self._refused or call.is_transfer:
            return False
        why = ""
        if not call.is_plain:
            why = "an argument of a kind that is not compiled"
        elif not has_lowering(call.op):
            why = "no lowering"
        elif not self._everything and is_heavy(call.op, [t.spec.shape for t in call.tensors]):
            why = "PyTorch's own kernel is better"
        elif not self._everything and self._lists(call) is None and _is_long(call):
            why = _NO_SHARED_LOOP
        if why:
            self._refuse(call, why)
        return not why

    def _lists(self, call: Call) -> Hashable:
        """Calls on lists whose elements can share a loop are a kind of their own."""
        if not self._target.takes_sizes:
            return None
        if call.number not in self._kinds:
            self._kinds[call.number] = lists_of(call)
        return self._kinds[call.number]

    def _refuse(self, call: Call, why: str) -> None:
        self._refused.add(call.number)
        self._not_lowered.setdefault(call.op, why)

    def _is_known(self, region: "_Region", in_other_ways: bool) -> bool:
        """Whether there is code for it, or never will be."""
        if region.key in self._built and not in_other_ways:
            return True
        if (why := self._known.given_up.get(region.key)) is not None:
            self._give_up(region, why)
            return True
        found = self._known.load_code(region.key)
        if found is not None:
            self._built[region.key] = found
        return found is not None and (found[0].is_refined or not in_other_ways)

    def _give_up(self, region: "_Region", why: str) -> None:
        for call in region.original:
            self._refuse(call, why)

    def _compile(self, region: "_Region", written: "_Written | None", in_other_ways: bool) -> None:
        assert written is not None
        before = self._built.get(region.key)
        if in_other_ways:
            self._add_variants(written, region)
        is_refined = in_other_ways or written.in_one_way
        found: Built | None = None
        if before is None or len(written.variants) > 1:
            found = self._tried(region, lambda _: written.built(self._target, is_refined))
        if before is not None and (found is None or found[0].chosen == 0):
            found = (replace(before[0], is_refined=True), before[1])  # no other way is better
        if found is not None:
            self._built[region.key] = found
            self._fresh += 1
            self._trouble = self._known.store_code(region.key, *found) or self._trouble

    def _tried(self, region: "_Region", make: "Callable[[_Region], T]") -> "T | None":
        """What `make` gives; None if it failed, and then calls are refused from now on."""
        try:
            return make(region)
        except (MemoryError, OSError, GccError):  # of the surroundings: another time it may work
            raise
        except TooLongError as error:
            if region.key not in self._built:  # else the first way goes on
                reason = f"{_described(region.original)}: {error}"
                self._failed.append((region.original[0].number, reason))
                self._known.given_up[region.key] = str(error)
                self._give_up(region, str(error))
        except Exception as error:  # a bug in a lowering or in tinygrad costs speed, nothing else
            self._blame(region, error)
        return None

    def _written(self, region: "_Region") -> "_Written | None":
        """None where calls were refused."""
        if region.kind is not None:
            by_rows = rows.compiled(region.calls, region.needed_after, self._target)
            if by_rows is not None:
                return _Written(by_rows[0], [by_rows[1]], None, in_one_way=True)
            if not self._everything and any(map(_is_long, region.calls)):
                self._give_up(region, _NO_SHARED_LOOP)
                return None
        own = values(region.trace, region.calls, region.needed_after)
        if own.guarded and not self._target.can_check:
            for call in own.guarded:
                self._refuse(region.original[call.number], "PyTorch's own kernel checks the data")
            return None
        guard = None
        if own.guard is not None:
            guard = self._generated(own, {len(own.buffers): own.guard.reshape((1,))})
        return _Written(own, [self._generated(own)], guard)

    def _generated(self, own: Values, outputs: Mapping[int, UOp] | None = None) -> Program[Any]:
        way = self._target.ways(own.buffers)[0]
        return self._target.generate(own, own.outputs if outputs is None else outputs, way)

    def _add_variants(self, written: "_Written", region: "_Region") -> None:
        """Programs that differ from the first."""
        if written.in_one_way:
            return
        own, seen = written.values, {written.variants[0].source}
        for variant in self._target.ways(own.buffers)[1:]:
            try:
                program = self._target.generate(own, own.outputs, variant)
            except MemoryError:
                raise
            except Exception as error:  # there is the first one; but it is told
                reason = f"written as {variant}: {type(error).__name__}: {error}"
                self._failed.append((region.original[0].number, reason))
                continue
            if program.source not in seen:
                seen.add(program.source)
                written.variants.append(program)

    def _blame(self, region: "_Region", why: Exception) -> None:
        """Refuse the call that failed, or those that cannot be compiled even alone, or all."""
        if isinstance(why, CallError):
            guilty = [(why.call, why.error)]
        else:
            errors = [(call, self._error_of(region, call)) for call in region.calls]
            alone = [(call, error) for call, error in errors if error is not None]
            guilty = alone or [(call, why) for call in region.calls]
        for call, error in guilty:
            reason = f"{type(error).__name__}: {error}"
            original = region.original[call.number]
            self._refuse(original, reason)
            if not isinstance(error, NoLowering):
                self._failed.append((original.number, f"{call.op}: {reason}"))

    def _error_of(self, region: "_Region", call: Call) -> Exception | None:
        try:
            self._generated(values(region.trace, [call], call.writes))
        except Exception as error:
            return error.error if isinstance(error, CallError) else error
        return None


class _Region:
    """Calls in numbers of their own, equal wherever the same is computed."""

    def __init__(self, trace: Trace, one: Group, needed_after: set[int], context: str) -> None:
        self.original = one.calls
        self.kind = one.kind
        numbers: dict[int, int] = {}

        def plain(tensor: Tensor) -> Tensor:
            return replace(tensor, slot=numbers.setdefault(tensor.slot, len(numbers)))

        self.calls = [
            replace(call.mapped(plain), number=i, written_unknown=set())
            for i, call in enumerate(one.calls)
        ]
        self.slots = list(numbers)
        """What they are in the trace."""
        self.needed_after = {number for slot, number in numbers.items() if slot in needed_after}
        sizes = [trace.slots[slot].nbytes for slot in numbers]
        self.trace = Trace([Slot(nbytes, is_temporary=False) for nbytes in sizes], self.calls)
        said = (self.calls, sizes, sorted(self.needed_after), self.kind is not None)
        self.key = digest(context, repr(said))


@dataclass
class _Written:
    """A region as programs, of which the fastest becomes its code."""

    values: Values
    variants: list[Program[Any]]
    guard: Program[Any] | None
    """Tells whether the region may run: one bool into the buffer after the last."""
    in_one_way: bool = False
    """Made for kinds of tensors."""

    def built(self, target: Target, is_refined: bool) -> Built:
        programs = {f"v{k}": program for k, program in enumerate(self.variants)}
        if self.guard is not None:
            programs["g"] = self.guard
        library = target.build(programs)
        chosen = 0
        if len(self.variants) > 1:
            times = target.times(library, self.variants, self.values.buffers)
            chosen = times.index(min(times))
        return self._code(target, chosen, is_refined), library

    def _code(self, target: Target, chosen: int, is_refined: bool) -> Code:
        own, program = self.values, self.variants[chosen]
        kernels = target.kernels(program, f"v{chosen}_")
        guard = self._guard_kernels(target, len(program.temporaries))
        used = {place for kernel in (*kernels, *guard) for place in kernel["buffers"]}
        return Code(
            [_told(buffer, i in own.outputs, i in used) for i, buffer in enumerate(own.buffers)],
            own.made,
            kernels,
            guard,
            [*program.temporaries, *(() if self.guard is None else self.guard.temporaries)],
            [(temporary, i, own.buffers[i].nbytes) for temporary, i in program.copies],
            # without what all programs share
            "\n".join({kernel.name: kernel.source for kernel in program.kernels}.values()),
            is_refined,
            chosen,
        )

    def _guard_kernels(self, target: Target, shift: int) -> list[Kernel]:
        """Its temporaries come after those of the region's own program."""
        if self.guard is None:
            return []
        kernels = target.kernels(self.guard, "g_")
        for kernel in kernels:
            kernel["buffers"] = [b if b >= 0 else b - shift for b in kernel["buffers"]]
        return kernels


def _told(buffer: Buffer, is_written: bool, is_read: bool) -> SlotBuffer | NumberBuffer:
    if buffer.slot is None:
        dtype = str(buffer.dtype).removeprefix("torch.")
        return NumberBuffer(call=buffer.call, value=buffer.value, item=buffer.item, dtype=dtype)
    return SlotBuffer(
        slot=buffer.slot,
        written=is_written,
        read=is_read,
        dtype=SCALAR_TYPE_NUMBERS[buffer.dtype],
        nbytes=buffer.nbytes,
        offset=buffer.offset,
    )


def _steps(trace: Trace, groups: list[Group]) -> list[tuple[int, int, list[int]]]:
    last: dict[int, int] = {}
    for number, one in enumerate(groups):
        for call in one.calls:
            for slot in call.reads | call.writes:
                last[slot] = number
    release: dict[int, list[int]] = {}
    for slot, number in last.items():
        if trace.slots[slot].is_temporary:
            release.setdefault(number, []).append(slot)
    steps = []
    region = 0
    for number, one in enumerate(groups):
        let_go = sorted(release.get(number, []))
        if one.is_region:
            steps.append((-1, region, let_go))
            region += 1
        else:
            steps.append((one.calls[0].number, -1, let_go))
    return steps


def _needed_after(trace: Trace, groups: list[Group]) -> list[set[int]]:
    """For each group the slots whose content matters once it has run, of those that it touches."""
    later = {slot for slot, one in enumerate(trace.slots) if not one.is_temporary}
    needed = []
    for one in reversed(groups):
        touched = {slot for call in one.calls for slot in call.reads | call.writes}
        needed.append(touched & later)
        later |= {slot for call in one.calls for slot in call.reads}
    return needed[::-1]


def _is_long(call: Call) -> bool:
    """Whether code for it would have a loop for each of many tensors."""
    return any(isinstance(arg, list) and len(arg) > _MOST_LISTED for arg in call.args)


def _described(calls: list[Call]) -> str:
    """A name for people: the first few operators."""
    names = [re.sub(r"^aten::|\..*$", "", call.op) for call in calls]
    more = f"+{len(names) - 4}" if len(names) > 4 else ""
    return "_".join(names[:4]) + more
