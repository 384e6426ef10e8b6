"""Results as lines of a table, and as JSON."""

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.measure import Result
from bench.sides import OURS

HEAD = (
    f"{'workload':<16}{'threads':>8}  {'opponent':<12}{'ours':>10}{'theirs':>10}"
    f"{'ratio':>8}  {'quartiles':<13}{'bar':>5}  {'':<6}{'first step':>10}"
)


def row(result: Result) -> str:
    """One line under HEAD."""
    steady, first = result.steady, result.first_step
    quartiles = f"{steady.ratio.low:.2f}..{steady.ratio.high:.2f}"
    bar = "" if result.bar is None else f"{result.bar:.2f}"
    verdict = "" if result.bar is None else "ok" if result.passed else "ABOVE"
    return (
        f"{result.workload.name:<16}{result.threads:>8}  {result.opponent.name:<12}"
        f"{_duration(steady.ours.median):>10}{_duration(steady.theirs.median):>10}"
        f"{steady.ratio.median:>8.2f}  {quartiles:<13}{bar:>5}  {verdict:<6}"
        f"{first.ratio.median:>10.2f}"
    )


def machine() -> dict[str, Any]:
    """Where and with what this was measured. Loads tiny, so call it in a process of its own."""
    OURS.load()
    memory: str = torch.get_device_module(OURS.device).device_name(0)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "memory": memory,
        "processor": _processor(memory),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def write_json(path: Path, results: list[Result], about: dict[str, Any]) -> None:
    """Everything that was measured, times in seconds."""
    entries = [
        {
            "workload": result.workload.name,
            "what": result.workload.what,
            "opponent": result.opponent.name,
            "threads": result.threads,
            "bar": result.bar,
            "passed": result.passed,
            "steady": asdict(result.steady),
            "first_step": asdict(result.first_step),
        }
        for result in results
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": about, "results": entries}, indent=2) + "\n")


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
