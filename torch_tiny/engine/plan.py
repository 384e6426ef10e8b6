"""What compiling makes, as worker, disk and core share it: plans, and the code of their regions.

The unit of compiling is a region, known by a digest of what it says: which operators on which
layouts, with slots and calls numbered from 0 in the order in which they are met. Where in a trace
it stands, and in which one, is the plan's business.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Required, TypedDict, final

if TYPE_CHECKING:
    from torch_tiny.engine.cache import PlanFiles


@dataclass(frozen=True)
class Place:
    """A region of a trace: `code` works on these slots and stands for these calls."""

    code: str
    """The key of its code."""
    name: str
    """For people: the first few operators."""
    slots: list[int]
    calls: list[int]


@dataclass
class Plan:
    """The steps of a trace."""

    steps: list[tuple[int, int, list[int]]]
    """(call, region, slots to let go of); -1 for none."""
    regions: list[Place]
    not_lowered: dict[str, str]
    """Operators that stay calls, and why."""
    failed: list[tuple[int, str]]
    """Calls among those that a fault of ours or of tinygrad's keeps out of regions, and which."""

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "regions": [vars(region) for region in self.regions]}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Plan":
        """Raises TypeError or KeyError where it is no plan."""
        regions = [Place(**region) for region in given["regions"]]
        return cls(given["steps"], regions, given["not_lowered"], given["failed"])


@final
class SlotBuffer(TypedDict):
    """A buffer of a region that is memory."""

    slot: int
    written: bool
    read: bool
    dtype: int
    """PyTorch's number of the type."""
    nbytes: int
    offset: int


@final
class NumberBuffer(TypedDict):
    """One that is a number which comes with a call."""

    call: int
    value: int
    item: int
    """Its place, where the value is a list; else -1."""
    dtype: str


class Kernel(TypedDict, total=False):
    """What a target tells of a kernel to who runs it: C, CUDA, a device that tinygrad drives."""

    name: Required[str]
    buffers: Required[Sequence[int]]
    """>= 0: of the region; -1-k: its temporary k."""
    parallel: int
    work: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    source: str
    groups: Sequence[int]
    threads: Sequence[int]
    loops: tuple[tuple[int, int], ...]


@dataclass
class Code:
    """A region compiled, in numbers of its own. It is JSON, and goes to the core as it is."""

    buffers: list[SlotBuffer | NumberBuffer]
    made: list[int]
    """Slots that come to exist here and are used afterwards."""
    kernels: list[Kernel]
    guard: list[Kernel]
    """Kernels that tell whether no call would raise, as a bool in a buffer after the last."""
    temporaries: list[int]
    """Bytes of each."""
    copies: list[tuple[int, int, int]]
    """(temporary, buffer, bytes), at the end."""
    source: str
    is_refined: bool = False
    """Whether it was also written in other ways, and is the fastest of them."""
    chosen: int = 0
    """Which of the ways it is."""
    engines: dict[str, str] = field(default_factory=dict)
    """By number of threads: which engine was measured to be faster."""


Built = tuple[Code, bytes]
"""With the shared object, or what else its target loads."""


@dataclass
class Made:
    """A plan and the code of all its regions."""

    plan: Plan
    built: dict[str, Built]
    fresh: int = 0
    """How many of the regions were not known before."""
    trouble: str = ""
    """Why the disk would not take one of them."""


class Remembered:
    """The code that was used last, and behind it what `others` keep."""

    def __init__(self, others: "PlanFiles | None" = None, most: int = 4096) -> None:
        self._others = others
        self._most = most
        self._built: OrderedDict[str, Built] = OrderedDict()
        self.given_up: dict[str, str] = {}
        """Why there is no code for a region, and will be none."""

    def load_code(self, key: str) -> Built | None:
        found = self._built.get(key)
        if (found is None or not found[0].is_refined) and self._others is not None:
            found = self._others.load_code(key) or found  # another process may have refined it
        if found is not None:
            self._remember(key, found)
        return found

    def store_code(self, key: str, code: Code, library: bytes) -> str:
        self._remember(key, (code, library))
        return "" if self._others is None else self._others.store_code(key, code, library)

    def forget(self, keys: Iterable[str]) -> None:
        """Of code that does not load."""
        for key in keys:
            self._built.pop(key, None)
            if self._others is not None:
                self._others.drop_code(key)

    def _remember(self, key: str, built: Built) -> None:
        self._built[key] = built
        self._built.move_to_end(key)
        if len(self._built) > self._most:
            self._built.popitem(last=False)


def digest(*parts: str) -> str:
    """A key for these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def as_bytes(made: Made) -> bytes:
    """A line of JSON, then all shared objects."""
    codes = [(key, vars(code), len(library)) for key, (code, library) in made.built.items()]
    head = {
        "plan": made.plan.as_json(),
        "codes": codes,
        "fresh": made.fresh,
        "trouble": made.trouble,
        "bytes": sum(size for _, _, size in codes),
    }
    libraries = (library for _, library in made.built.values())
    return json.dumps(head).encode() + b"\n" + b"".join(libraries)


def from_bytes(head: Mapping[str, Any], libraries: bytes) -> Made:
    """What as_bytes has written, the first line parsed."""
    built: dict[str, Built] = {}
    begin = 0
    for key, code, size in head["codes"]:
        built[key] = (Code(**code), libraries[begin : begin + size])
        begin += size
    return Made(Plan.from_json(head["plan"]), built, head["fresh"], head["trouble"])
