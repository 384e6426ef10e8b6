"""What the device has done, for people: `print(torch_tiny.report())`."""

import sys
from dataclasses import dataclass
from typing import Any

LINES = 10


@dataclass(frozen=True)
class Cause:
    """Traces that were run for one reason at one line of the user's program."""

    reason: str
    where: str
    count: int


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between the host and a portable device by one line of the user's program."""

    direction: str
    """ "upload" or "download"."""
    where: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Failure:
    """Something that went wrong and cost speed, but changed no result."""

    kind: str
    """ "compile", "cache", "missing", "relayout" or "refusal"."""
    reason: str
    where: str
    """The line of the user's program that recorded it, or "" if it has none."""
    count: int


@dataclass(frozen=True)
class Region:
    """Calls that run as one, and how long they take each way."""

    name: str
    code: str
    """A key: regions that compute the same share it."""
    calls: int
    kernels: int
    scalars: int
    """Numbers that are inputs of the kernels, so that a new one needs no new code."""
    engine: str
    """Which one was kept: "uop" or "aten"; "" while both are being timed."""
    threads: int
    """Of the last run, that `engine` is for; 0 on a GPU, -1 before the first run."""
    engines: dict[str, str]
    """All that was chosen, by numbers of threads."""
    seconds_aten: float
    seconds_uop: float


@dataclass(frozen=True)
class Plan:
    """A trace that was compiled."""

    plan: int
    runs: int
    seconds: float
    """Of all its runs."""
    calls: int
    regions: list[Region]


@dataclass(frozen=True, repr=False)
class Report:
    """Counts since the start or the last `torch.tiny.reset_metrics()`. Print it to read them."""

    calls: int
    """Operator calls that were recorded."""
    calls_by_op: dict[str, int]
    at_once_by_op: dict[str, int]
    """Calls that could not be recorded and ran at once, by operator."""
    traces: int
    """Recordings that were run."""
    plan_hits: int
    """Traces for which there was a plan from an earlier one."""
    plan_misses: int
    metadata_hits: int
    """Calls whose result's shape was remembered from an equal call."""
    metadata_misses: int
    syncs: int
    """Times the program waited for the device."""
    relayouts: int
    """Results that had to be copied into the strides they were recorded with."""
    products: int
    """Matrix products by oneDNN: it was measured faster than MKL, or was being measured."""
    graphs: int
    """CUDA graphs that were captured, each for a trace that runs often."""
    graph_runs: int
    """Traces that ran as one launch of such a graph."""
    causes: list[Cause]
    """Why traces were run and where, most frequent first."""
    miss_reasons: list[Cause]
    """Why there was no plan for a trace: what was new, and where."""
    plans: list[Plan]
    """Traces that were compiled, most frequent first."""
    compiles: int
    """Traces that were compiled in this process; `cache_hits` came from disk."""
    cache_hits: int
    compile_failures: int
    """Traces that could not be compiled, and calls that a fault keeps out of compiled code."""
    postponed: int
    """Times a trace was not compiled at once since too many were waiting."""
    failures: list[Failure]
    """Everything that costs speed because it failed, most frequent first."""
    seconds_compiling: float
    not_lowered: dict[str, str]
    """Operators in compiled traces that stay calls, and why."""
    seconds_recording: float
    seconds_running: float
    traffic: list[Traffic]
    """What was moved between the host and portable devices, most bytes first."""
    fallbacks: list[Cause]
    """Operators that ran on the host since the device has no kernel for them, and where."""

    def __repr__(self) -> str:
        head = [
            ("calls recorded", f"{self.calls}"),
            ("calls run at once", f"{sum(self.at_once_by_op.values())}"),
            ("traces run", f"{self.traces}"),
            ("plan cache", _share(self.plan_hits, self.plan_misses)),
            ("metadata cache", _share(self.metadata_hits, self.metadata_misses)),
            ("syncs", f"{self.syncs}"),
            ("relayouts", f"{self.relayouts}"),
            ("by oneDNN", f"{self.products} matrix products"),
            ("CUDA graphs", f"{self.graphs} captured, {self.graph_runs} runs"),
            ("recording", f"{self.seconds_recording:.3f} s"),
            ("running", f"{self.seconds_running:.3f} s"),
            ("compiled", f"{self.compiles} traces, {self.cache_hits} from disk"),
            ("compiling", f"{self.seconds_compiling:.1f} s in the background"),
            ("failed compiles", f"{self.compile_failures}, {self.postponed} postponed"),
        ]
        width = max((len(cause.reason) for cause in self.causes), default=0)
        causes = [(cause.count, f"{cause.reason:<{width}}  {cause.where}") for cause in self.causes]
        return "\n".join(
            [
                "torch_tiny",
                *(f"  {name:<18} {value}" for name, value in head),
                *_table(
                    "what failed, and costs speed",
                    [(f.count, f"{f.kind}: {f.reason}  {f.where}") for f in self.failures],
                ),
                *_table("why traces were run", causes),
                *_table(
                    "why traces were new",
                    [(n.count, f"{n.reason}  {n.where}") for n in self.miss_reasons],
                ),
                *_regions(self.plans),
                *_table(
                    "run on the host, with copies",
                    [(f.count, f"{f.reason}  {f.where}") for f in self.fallbacks],
                ),
                *_table(
                    "bytes moved between host and device",
                    [(t.bytes, f"{t.direction}, {t.count} times  {t.where}") for t in self.traffic],
                ),
                *_table("recorded most", [(n, op) for op, n in self.calls_by_op.items()]),
                *_table("run at once", [(n, op) for op, n in self.at_once_by_op.items()]),
            ]
        )


def report() -> Report:
    """What the tiny devices have done so far. Print it, or read its attributes."""
    from torch_tiny import _C  # here, since the package is importable without its core

    metrics = _C.metrics()
    causes = [Cause(**cause) for cause in metrics["causes"]]
    causes.sort(key=lambda cause: cause.count, reverse=True)
    miss_reasons = [Cause(**new) for new in metrics["miss_reasons"]]
    miss_reasons.sort(key=lambda new: new.count, reverse=True)
    traffic = [Traffic(**moved) for moved in metrics["traffic"]]
    traffic.sort(key=lambda moved: moved.bytes, reverse=True)
    fallbacks = [Cause(**fallback) for fallback in metrics["fallbacks"]]
    fallbacks.sort(key=lambda fallback: fallback.count, reverse=True)
    values: dict[str, Any] = {
        **metrics,
        "causes": causes,
        "miss_reasons": miss_reasons,
        "traffic": traffic,
        "fallbacks": fallbacks,
    }
    return Report(**values, **_compiled())


def _compiled() -> dict[str, Any]:
    from torch_tiny import _C, failures
    from torch_tiny.engine import service

    portable = sys.modules.get("torch_tiny.portable.service")  # which imports tinygrad
    engines = [
        one for one in (service.engine, getattr(portable, "engine", None)) if one is not None
    ]
    counts = [engine.counts for engine in engines]
    refused = [dict(count.not_lowered) for count in counts]  # threads go on adding to them
    plans = [
        Plan(**{**plan, "regions": [Region(**region) for region in plan["regions"]]})
        for device in range(_C.device_count())
        for plan in _C.plans(device)
    ]
    plans.sort(key=lambda plan: plan.runs, reverse=True)
    return {
        "plans": plans,
        "compiles": sum(count.compiles for count in counts),
        "cache_hits": sum(count.cache_hits for count in counts),
        "compile_failures": sum(count.failures for count in counts),
        "postponed": _C.postponed_jobs(),
        "failures": failures.listed(),
        "seconds_compiling": sum(count.seconds_compiling for count in counts),
        "not_lowered": {op: why for notes in refused for op, why in notes.items()},
    }


def _regions(plans: list[Plan]) -> list[str]:
    """The regions of the plan that runs most, with the time of each engine."""
    if not plans:
        return []
    lines = [f"regions of the most frequent trace ({plans[0].calls} calls, {plans[0].runs} runs)"]
    for region in plans[0].regions[:LINES]:
        times = "not timed here"
        if max(region.seconds_aten, region.seconds_uop) < 1e3:
            aten, uop = region.seconds_aten * 1e6, region.seconds_uop * 1e6
            times = f"aten {aten:.0f} us, uop {uop:.0f} us"
        kept = region.engine or "both, in turns"
        lines.append(f"  {region.name:<40} {region.kernels:>3} kernels  {times}  runs on {kept}")
    return lines


def _share(hits: int, misses: int) -> str:
    total = hits + misses
    percent = f" ({hits / total:.1%})" if total else ""
    return f"{hits} hits, {misses} misses{percent}"


def _table(title: str, rows: list[tuple[int, str]]) -> list[str]:
    """The largest counts, and how many rows were left out."""
    if not rows:
        return []
    rows = sorted(rows, reverse=True)
    left_out = [f"  {'':>10} ... and {len(rows) - LINES} more"] if len(rows) > LINES else []
    return [title, *(f"  {count:>10} {what}" for count, what in rows[:LINES]), *left_out]
