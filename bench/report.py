"""Results as lines of a table, and as JSON."""

import json
import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.inside import Inside
from bench.measure import Result
from bench.sides import OURS

MOST_TEXT = 160
HEAD = (
    f"{'workload':<16}{'threads':>8}  {'opponent':<13}{'ours':>10}{'theirs':>10}"
    f"{'ratio':>8}  {'quartiles':<13}{'bar':>5}  {'':<6}{'first step':>10}{'ratio':>8}"
    f"{'memory':>10}{'ratio':>7}"
)
INSIDE_HEAD = (
    f"{'tiny, per step':<16}{'threads':>8}{'calls':>8}{'left':>8}{'regions':>9}{'used':>7}"
    f"{'kernels':>9}  remarks"
)


def row(result: Result) -> str:
    """One line under HEAD."""
    name = f"{result.workload.name:<16}{result.threads:>8}  {result.opponent.name:<13}"
    if result.numbers is None:
        why = "" if result.failure is None else result.failure.why
        return f"{name}{'n/a':>10}  {_one_line(why)}"
    steady, first, memory = (
        result.numbers.steady,
        result.numbers.first_step,
        result.numbers.memory,
    )
    once = ""
    if first is not None and memory is not None:
        once = (
            f"{_duration(first.ours.median):>10}{first.ratio.median:>8.3g}"
            f"{memory.ours.median / 2**20:>6.0f} MiB{memory.ratio.median:>7.2f}"
        )
    quartiles = f"{steady.ratio.low:.2f}..{steady.ratio.high:.2f}"
    bar = "" if result.bar is None else f"{result.bar:.2f}"
    verdict = "" if result.bar is None else "ok" if result.passed else "ABOVE"
    return (
        f"{name}{_duration(steady.ours.median):>10}{_duration(steady.theirs.median):>10}"
        f"{steady.ratio.median:>8.2f}  {quartiles:<13}{bar:>5}  {verdict:<6}{once}"
    )


def inside_rows(results: list[Result]) -> list[str]:
    """The lines under INSIDE_HEAD, one for each workload and number of threads."""
    seen = {(result.workload.name, result.threads): result.inside for result in results}
    return [
        f"{name:<16}{threads:>8}{inside.calls:>8.4g}{inside.calls_left:>8.4g}"
        f"{inside.regions:>9.4g}{inside.regions_used:>7.4g}{inside.kernels:>9.4g}"
        f"  {_remarks(inside)}".rstrip()
        for (name, threads), inside in seen.items()
        if inside is not None
    ]


def means(results: list[Result]) -> list[str]:
    """A line for each opponent and number of threads: the geometric mean of the ratios."""
    ratios: dict[tuple[str, int], list[float]] = {}
    for result in results:
        if result.numbers is not None and result.workload.in_mean:
            key = result.opponent.name, result.threads
            ratios.setdefault(key, []).append(result.numbers.steady.ratio.median)
    return [
        f"geometric mean of {len(own)} ratios, {threads} threads, against {name}: "
        f"{statistics.geometric_mean(own):.3f}"
        for (name, threads), own in ratios.items()
    ]


def machine() -> dict[str, Any]:
    """Where and with what this was measured. Loads tiny, so call it in a process of its own."""
    OURS.load()
    memory: str = torch.get_device_module(OURS.device).device_name(0)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "memory": memory,
        "engine": os.environ.get("TORCH_TINY_ENGINE", "auto"),
        "processor": _processor(memory),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def write_json(path: Path, results: list[Result], about: dict[str, Any]) -> None:
    """Everything that was measured, times in seconds, memory in bytes."""
    entries = [
        {
            "workload": result.workload.name,
            "what": result.workload.what,
            "opponent": result.opponent.name,
            "threads": result.threads,
            "bar": result.bar,
            "passed": result.passed,
            **({} if result.numbers is None else asdict(result.numbers)),
            "inside": None if result.inside is None else asdict(result.inside),
            "failure": None if result.failure is None else result.failure.why,
            "traceback": None if result.failure is None else result.failure.details,
        }
        for result in results
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": about, "results": entries}, indent=2) + "\n")


def _remarks(inside: Inside) -> str:
    unsettled = [] if inside.settled else ["still compiling or choosing when measured"]
    failed = [f"{inside.failures} not compiled: {_one_line(inside.last_failure)}"]
    return "; ".join(unsettled + (failed if inside.failures else []))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MOST_TEXT]


def _processor(memory: str) -> str:
    if memory != "cpu":
        return torch.cuda.get_device_name(memory)
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds / 1e-6:.2f} us"
