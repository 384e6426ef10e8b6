"""From the text of a trace to a plan: steps, regions and one shared object with their kernels."""

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_tiny.engine import rows
from torch_tiny.engine.codegen import Program as CpuProgram
from torch_tiny.engine.rows import lists_of
from torch_tiny.engine.target import Program, Target, target_of
from torch_tiny.graph import Group, Values, group, values
from torch_tiny.lower import NoLowering, has_lowering, is_heavy
from torch_tiny.trace import SCALAR_TYPE_NUMBERS, Call, Tensor, Trace, read_trace
from torch_tiny.uops import compiling

_MOST_LISTED = 4  # tensors in a list
_NO_SHARED_LOOP = "of many tensors, which do not share a loop"
_FEW_REGIONS = 2  # in which a program spends its time: worth trying other ways to write them


@dataclass
class Plan:
    """What the core installs, as JSON values."""

    steps: list[tuple[int, int, list[int]]]
    """(call, region, slots to let go of); -1 for none."""
    regions: list[dict[str, Any]]
    not_lowered: dict[str, str]
    """Operators that stay calls, and why."""
    failed: list[tuple[int, str]]
    """Calls among those that a fault of ours or of tinygrad's keeps out of regions, and which."""
    sources: dict[str, str]
    """The C of each program; a region names its own."""


def compile_trace(
    text: str, library: Path, everything: bool = False, target: str | Target = "cpu"
) -> Plan:
    """Compile the regions of a trace into `library`, which is not made if there is none.

    everything: also what PyTorch's own kernels do better, such as matrix products.
    """
    with compiling():
        return _compiled(read_trace(text), library, everything, target)


def _compiled(trace: Trace, library: Path, everything: bool, target: str | Target) -> Plan:
    to = target_of(target) if isinstance(target, str) else target
    compiler = _Compiler(trace, everything, to)
    groups = compiler.groups()
    compiler.choose_variants(library)
    return Plan(
        _steps(trace, groups),
        [compiler.region(g) for g in groups if g.is_region],
        compiler.not_lowered,
        compiler.failed,
        {g_name(i): _own_source(c.program) for i, c in enumerate(compiler.unique)},
    )


def g_name(number: int) -> str:
    return f"r{number}"


@dataclass
class _Candidate:
    """The ways to write one region, of which one is chosen."""

    values: Values
    variants: list[Program]
    guard: Program | None
    """Tells whether the region may run: one bool into the buffer after the last."""
    first_call: int
    by_rows: bool = False
    """Made for kinds of tensors, in one way."""
    chosen: int = 0

    @property
    def program(self) -> Program:
        return self.variants[self.chosen]


class _Compiler:
    def __init__(self, trace: Trace, everything: bool, target: Target) -> None:
        self._trace = trace
        self._target = target
        self._everything = everything
        self.not_lowered: dict[str, str] = {}
        self.failed: list[tuple[int, str]] = []
        self._refused: set[int] = set()
        self.unique: list[_Candidate] = []
        self._by_key: dict[str, int] = {}
        self._of_group: dict[int, tuple[int, Values]] = {}
        self._kinds: dict[int, Hashable] = {}

    def groups(self) -> list[Group]:
        """The steps, after calls that turned out not to be lowered were taken out of regions."""
        while True:
            groups = group(self._trace, self._belongs, self._lists)
            before = len(self._refused)
            for number, one in enumerate(groups):
                if one.is_region:
                    self._evaluate(one, _needed_after(self._trace, groups, number))
            if len(self._refused) == before:
                return groups
            self._of_group.clear()

    def choose_variants(self, library: Path) -> None:
        if not self.unique:
            return
        if len(self.unique) <= _FEW_REGIONS and not self._everything:
            for candidate in self.unique:
                self._add_variants(candidate)
        programs = {
            f"{g_name(i)}v{k}": program
            for i, candidate in enumerate(self.unique)
            for k, program in enumerate(candidate.variants)
        }
        for i, candidate in enumerate(self.unique):
            if candidate.guard is not None:
                programs[f"{g_name(i)}g"] = candidate.guard
        self._target.build(programs, library)
        for i, candidate in enumerate(self.unique):
            if len(candidate.variants) > 1:
                buffers = candidate.values.buffers
                times = self._target.times(library, g_name(i), candidate.variants, buffers)
                candidate.chosen = times.index(min(times))

    def region(self, one: Group) -> dict[str, Any]:
        number, own = self._of_group[one.calls[0].number]
        candidate = self.unique[number]
        program = candidate.program
        prefix = f"{g_name(number)}v{candidate.chosen}"
        kernels = self._target.kernels(program, prefix)
        guard = self._guard_kernels(candidate, f"{g_name(number)}g")
        used = {place for kernel in (*kernels, *guard) for place in kernel["buffers"]}
        return {
            "name": _describe(one.calls),
            "program": g_name(number),
            "calls": [call.number for call in one.calls],
            "buffers": [
                {
                    "slot": buffer.slot,
                    "written": i in own.outputs,
                    "read": i in used,
                    "dtype": SCALAR_TYPE_NUMBERS[buffer.dtype],
                    "nbytes": buffer.size * buffer.dtype.itemsize,
                    "offset": buffer.offset,
                }
                if buffer.slot is not None
                else {
                    "call": buffer.call,
                    "value": buffer.value,
                    "item": buffer.item,
                    "dtype": str(buffer.dtype).removeprefix("torch."),
                }
                for i, buffer in enumerate(own.buffers)
            ],
            "made": own.made,
            "kernels": kernels,
            "guard": guard,
            "temporaries": [
                *program.temporaries,
                *(() if candidate.guard is None else candidate.guard.temporaries),
            ],
            "copies": [
                (temporary, buffer, own.buffers[buffer].size * own.buffers[buffer].dtype.itemsize)
                for temporary, buffer in program.copies
            ],
            "engine": "",
        }

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
        elif self._is_written_out(call):
            why = _NO_SHARED_LOOP
        if why:
            self._refuse(call, why)
        return not why

    def _is_written_out(self, call: Call) -> bool:
        """Whether its code would grow with its lists; on a GPU every call's does."""
        if self._everything or not self._target.takes_sizes:
            return False
        return self._lists(call) is None and _is_long(call)

    def _lists(self, call: Call) -> Hashable:
        """Calls on lists whose elements can share a loop are a kind of their own."""
        if not self._target.takes_sizes:
            return None
        if call.number not in self._kinds:
            self._kinds[call.number] = lists_of(call)
        return self._kinds[call.number]

    def _refuse(self, call: Call, why: str) -> None:
        self._refused.add(call.number)
        self.not_lowered.setdefault(call.op, why)

    def _evaluate(self, one: Group, needed_after: set[int]) -> None:
        try:
            if one.kind is not None and self._evaluate_rows(one, needed_after):
                return
            if not self._everything and one.kind is not None and any(map(_is_long, one.calls)):
                for call in one.calls:
                    self._refuse(call, _NO_SHARED_LOOP)
                return
            own = values(self._trace, one.calls, needed_after)
            if own.guarded and not self._target.can_check:
                for call in own.guarded:
                    self._refuse(call, "PyTorch's own kernel checks the data")
                return
            key = _key(self._trace, one.calls, needed_after)
            if key not in self._by_key:
                program = self._target.generate(own, own.outputs, self._target.variants[0])
                guard = self._guard(own)
                self.unique.append(_Candidate(own, [program], guard, one.calls[0].number))
                self._by_key[key] = len(self.unique) - 1
            self._of_group[one.calls[0].number] = (self._by_key[key], own)
        except MemoryError:
            raise
        except Exception as error:  # a bug in a lowering or in tinygrad costs speed, nothing else
            self._blame(one, error)

    def _evaluate_rows(self, one: Group, needed_after: set[int]) -> bool:
        """Whether calls on lists were compiled by the kinds of their elements."""
        key = _key(self._trace, one.calls, needed_after)
        found = rows.compiled(one.calls, needed_after, self._by_elements)
        if found is None:
            return False
        own, program = found
        if key not in self._by_key:
            first = one.calls[0].number
            self.unique.append(_Candidate(own, [program], None, first, by_rows=True))
            self._by_key[key] = len(self.unique) - 1
        self._of_group[one.calls[0].number] = (self._by_key[key], own)
        return True

    def _by_elements(self, own: Values) -> CpuProgram:
        program = self._target.generate(own, own.outputs, self._target.variants[0])
        assert isinstance(program, CpuProgram)
        return program

    def _add_variants(self, candidate: _Candidate) -> None:
        """Programs that differ from the first."""
        if candidate.by_rows:
            return
        own, seen = candidate.values, {candidate.program.source}
        for variant in self._target.variants[1:]:
            try:
                program = self._target.generate(own, own.outputs, variant)
            except MemoryError:
                raise
            except Exception as error:  # there is the first one; but it is told
                reason = f"written as {variant}: {type(error).__name__}: {error}"
                self.failed.append((candidate.first_call, reason))
                continue
            if program.source not in seen:
                seen.add(program.source)
                candidate.variants.append(program)

    def _guard(self, own: Values) -> Program | None:
        if own.guard is None:
            return None
        outputs = {len(own.buffers): own.guard.reshape((1,))}
        return self._target.generate(own, outputs, self._target.variants[0])

    def _guard_kernels(self, candidate: _Candidate, prefix: str) -> list[dict[str, Any]]:
        """Its temporaries come after those of the region's own program."""
        if candidate.guard is None:
            return []
        shift = len(candidate.program.temporaries)
        kernels = self._target.kernels(candidate.guard, prefix)
        for kernel in kernels:
            kernel["buffers"] = [b if b >= 0 else b - shift for b in kernel["buffers"]]
        return kernels

    def _blame(self, one: Group, why: Exception) -> None:
        """Find the calls that cannot be compiled even alone; all of them if there are none."""
        errors = [(call, self._error_of(call)) for call in one.calls]
        alone = [(call, error) for call, error in errors if error is not None]
        for call, error in alone or [(call, why) for call in one.calls]:
            reason = f"{type(error).__name__}: {error}"
            self._refuse(call, reason)
            if not isinstance(error, NoLowering):
                self.failed.append((call.number, f"{call.op}: {reason}"))

    def _error_of(self, call: Call) -> Exception | None:
        try:
            own = values(self._trace, [call], call.writes)
            self._target.generate(own, own.outputs, self._target.variants[0])
        except Exception as error:
            return error
        return None


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


def _needed_after(trace: Trace, groups: list[Group], number: int) -> set[int]:
    """Slots whose content matters once this group has run."""
    needed = {slot for slot, one in enumerate(trace.slots) if not one.is_temporary}
    for later in groups[number + 1 :]:
        for call in later.calls:
            needed |= call.reads
    return needed


def _is_long(call: Call) -> bool:
    """Whether code for it would have a loop for each of many tensors."""
    return any(isinstance(arg, list) and len(arg) > _MOST_LISTED for arg in call.args)


def _describe(calls: list[Call]) -> str:
    """A name for people: the first few operators."""
    names = [re.sub(r"^aten::|\..*$", "", call.op) for call in calls]
    more = f"+{len(names) - 4}" if len(names) > 4 else ""
    return "_".join(names[:4]) + more


def _key(trace: Trace, calls: list[Call], needed_after: set[int]) -> str:
    """Equal for regions that need the same code: slots and calls are numbered anew."""
    slots: dict[int, int] = {}

    def plain(item: Any) -> Any:
        if isinstance(item, Tensor):
            slot = slots.setdefault(item.slot, len(slots))
            return ("t", slot, str(item.dtype), repr(item.spec), item.conj, item.neg)
        if isinstance(item, list):
            return [plain(one) for one in item]
        return repr(item)

    described = [
        (call.op, [plain(arg) for arg in call.args], [plain(one) for one in call.results])
        for call in calls
    ]
    sizes = [(trace.slots[slot].nbytes, slot in needed_after) for slot in slots]
    return json.dumps([described, sizes])


def _own_source(program: Program) -> str:
    """The C of a program without what all programs share."""
    return "\n".join({kernel.name: kernel.source for kernel in program.kernels}.values())
