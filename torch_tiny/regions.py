"""Which calls of a trace run together: regions, in an order in which they can run."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from torch_tiny.trace import Call, Trace

MOST_CALLS = 100  # in a region: compile time grows faster than its calls


@dataclass
class Group:
    """Calls that become one step: a region, or one call that stays a call."""

    calls: list[Call]
    is_region: bool
    kind: Hashable = None
    """Calls of different kinds are not put together."""
    before: set[int] = field(default_factory=set)
    """Numbers of the groups that have to run first."""


def group(
    trace: Trace, belongs: Callable[[Call], bool], kind: Callable[[Call], Hashable]
) -> list[Group]:
    """The steps of a trace, in an order in which they can run.

    Regions are as large as they can be while no value leaves one and comes back into it through
    something else. Calls keep their order wherever one of them writes what the other one touches,
    and those that draw numbers theirs.
    """
    groups: list[Group] = []
    ordered: set[int] = set()  # the last of these
    member: dict[int, int] = {}
    for call, needed in zip(trace.calls, _dependencies(trace), strict=True):
        before = {member[number] for number in needed}
        is_region = belongs(call)
        keeps_order = call.is_ordered and not is_region  # in a region it has numbers of its own
        before |= ordered if keeps_order else set()
        own = kind(call) if is_region else None
        home = _home(groups, before, own) if is_region else None
        if home is None:
            home = len(groups)
            groups.append(Group([], is_region, own))
        groups[home].calls.append(call)
        groups[home].before |= before - {home}
        member[call.number] = home
        ordered = {home} if keeps_order else ordered
    return _in_order(groups)


def _dependencies(trace: Trace) -> Iterable[set[int]]:
    """For each call the calls that must run before it, nearest ones only."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for call in trace.calls:
        needed = {writer[slot] for slot in call.reads | call.writes if slot in writer}
        needed.update(*(readers.get(slot, ()) for slot in call.writes))
        for slot in call.reads - call.writes:
            readers.setdefault(slot, set()).add(call.number)
        for slot in call.writes:
            writer[slot] = call.number
            readers[slot] = set()
        yield needed - {call.number}


def _home(groups: list[Group], before: set[int], kind: Hashable) -> int | None:
    """The region that a call may join: one that it needs rather than another, late ones first.

    A call may join a region unless something else that it needs depends on that region.
    """

    def has_room(number: int) -> bool:
        one = groups[number]
        return one.is_region and one.kind == kind and len(one.calls) < MOST_CALLS

    for number in filter(has_room, sorted(before, reverse=True)):
        if number not in _upstream(groups, before - {number}):
            return number
    reach = _upstream(groups, before)
    others = (number for number in range(len(groups) - 1, -1, -1) if number not in reach)
    return next(filter(has_room, others), None)


def _upstream(groups: list[Group], start: set[int]) -> set[int]:
    seen: set[int] = set()
    stack = list(start)
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            stack += groups[number].before
    return seen


def _in_order(groups: list[Group]) -> list[Group]:
    """Each after those that it needs, the earliest ones first."""
    order: dict[int, None] = {}
    stack = list(reversed(range(len(groups))))
    while stack:
        missing = groups[stack[-1]].before - order.keys()
        if missing:
            stack += sorted(missing, reverse=True)
        else:
            order.setdefault(stack.pop())
    return [groups[number] for number in order]
