"""What the device makes of a piece of code: `print(torch_tiny.explain(fn, *args))`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Region:
    """Calls that are compiled together."""

    name: str
    calls: list[int]
    kernels: list[str]
    source: str
    """The generated C, of all its kernels."""


@dataclass(frozen=True)
class Trace:
    """One recording: its calls, and what becomes of them."""

    calls: list[str]
    steps: list[str]
    """In the order they run: a region, or an operator that stays a call."""
    regions: list[Region]
    not_compiled: dict[str, str]
    """Operators that stay calls, and why."""

    def __str__(self) -> str:
        lines = [f"trace of {len(self.calls)} calls, {len(self.steps)} steps"]
        lines += [f"  {number:>4} {call}" for number, call in enumerate(self.calls)]
        lines += ["steps", *(f"  {step}" for step in self.steps)]
        if self.not_compiled:
            lines += ["stay calls"]
            lines += [f"  {op}: {why}" for op, why in sorted(self.not_compiled.items())]
        for region in self.regions:
            lines += [f"region {region.name}: {len(region.kernels)} kernels", region.source]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Explanation:
    """The traces that a piece of code made. Print it, or look at its parts."""

    traces: list[Trace]

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.traces)) or "nothing was recorded"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run `function` and tell what was recorded, how it is grouped, and the code it becomes.

    It runs twice: the first time the device learns what results look like. Nothing is compiled for
    later, and results are dropped.
    """
    from torch_tiny import _C, device

    def run() -> None:
        result = function(*args, **kwargs)  # kept, or it would be dead code
        device.synchronize()
        del result

    run()
    _C.listen(True)
    try:
        run()
    finally:
        texts = _C.listen(False)
    return Explanation([_explained(text) for text in texts])


def _explained(text: str) -> Trace:
    from torch_tiny.engine.compile import compile_trace
    from torch_tiny.trace import read_trace

    made = compile_trace(text)
    plan = made.plan
    calls = [_described(call.op, call.args) for call in read_trace(text).calls]
    regions = []
    for region in plan.regions:
        code, _ = made.built[region.code]
        names = [kernel["name"] for kernel in code.kernels]
        regions.append(Region(region.name, region.calls, names, code.source))
    steps = [
        calls[call] if call >= 0 else f"region {regions[region].name} ({regions[region].calls})"
        for call, region, _ in plan.steps
    ]
    return Trace(calls, steps, regions, plan.not_lowered)


def _described(op: str, args: list[Any]) -> str:
    from torch_tiny.trace import Tensor, Value

    def described(arg: Any) -> str:
        if isinstance(arg, Tensor):
            shape = "x".join(map(str, arg.spec.shape))
            return f"%{arg.slot}[{shape}]"
        if isinstance(arg, Value):
            return "number" if arg.known is None else str(arg.known)
        if isinstance(arg, list):
            return f"[{', '.join(map(described, arg))}]"
        return str(arg)

    return f"{op.removeprefix('aten::')}({', '.join(map(described, args))})"
