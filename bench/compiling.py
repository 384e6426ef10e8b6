"""What compiling costs on networks as people train them, and what a user waits for.

    python -m bench compile [--only NAME ...] [--threads N] [--json FILE]

Each network trains in a process of its own from an empty cache, a step on tiny and a step of eager
PyTorch in turns, until nothing is left to compile or to choose and for a while after that; then
another process begins with what the first one left on disk. Told are

    CPU s    processor seconds of the worker and its gcc
    until    seconds from the first step until the last plan was installed and chosen
    failed   compiles that failed, for whatever reason
    beside   eager's step while the worker compiles over the same steps of the second process,
             where nothing is compiled; each over what a step takes once its process is warm
    worst    the worst ten seconds after the first step: tiny's steps over eager's
    steady   the same once nothing changes any more
    again    plans that the second process had to compile
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.networks import Step, available

MOST_SECONDS = 300.0
STEADY_SECONDS = 8.0
WINDOW_SECONDS = 10.0


def main() -> int:
    networks = available()
    parser = argparse.ArgumentParser(prog="python -m bench compile")
    parser.add_argument("--only", nargs="+", choices=networks, default=list(networks))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", choices=networks, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.inside:
        print(json.dumps(measured(options.inside)))
        return 0
    print(f"{'network':<14}" + "".join(f"{name:>9}" for name in _COLUMNS), flush=True)
    found = {}
    for name in options.only:
        with tempfile.TemporaryDirectory() as cache:
            found[name] = one = _in_process(name, options.threads, cache)
            second = _in_process(name, options.threads, cache)
        one["again"] = second["plans"]
        one["beside"] = _beside(one.pop("busy"), one.pop("theirs"), second["theirs"])
        print(f"{name:<14}" + "".join(f"{_told(one[key]):>9}" for key in _COLUMNS), flush=True)
    real = [
        one["steady"] for name, one in found.items() if name in ("resnet", "gpt2", "bert", "vit")
    ]
    if real:
        print(f"geometric mean of transformers' networks: {statistics.geometric_mean(real):.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


_COLUMNS = ("CPU s", "until", "plans", "failed", "beside", "worst", "steady", "again")


def measured(name: str) -> dict[str, Any]:
    """Train until everything is compiled and chosen, and for a while longer, beside eager."""
    import torch_tiny  # noqa: F401
    from torch_tiny import _C
    from torch_tiny.engine import service

    make = available()[name]
    ours, theirs = make("tiny"), make("cpu")
    engine = service.engine
    assert engine is not None
    theirs(), ours()
    begin = changed = time.monotonic()
    seen, cpu = None, dict[int, float]()
    turns: list[tuple[float, float, float, bool]] = []
    while (now := time.monotonic()) - begin < MOST_SECONDS and now - changed < STEADY_SECONDS:
        busy = bool(engine.counts.waiting)
        mine, other = _seconds(ours), _seconds(theirs)
        turns.append((now - begin, mine, other, busy and bool(engine.counts.waiting)))
        state = (engine.counts.compiles, engine.counts.failures, _undecided(_C))
        if state != seen or busy:
            seen, changed = state, now
        cpu |= {pid: _cpu_seconds(pid) or cpu.get(pid, 0.0) for pid in engine.workers.pids}
    until = changed - begin
    after = [turn for turn in turns if turn[0] > until]
    warm = statistics.median(other for _, _, other, _ in after)
    return {
        "CPU s": sum(cpu.values()),
        "until": until,
        "plans": engine.counts.compiles,
        "failed": engine.counts.failures,
        "busy": [i for i, (_, _, _, busy) in enumerate(turns) if busy],
        "theirs": [other / warm for _, _, other, _ in turns],
        "worst": _worst(turns),
        "steady": statistics.median(mine / other for _, mine, other, _ in after),
    }


def _beside(busy: list[int], compiling: list[float], idle: list[float]) -> float:
    both = [i for i in busy if i < len(idle)]
    if not both:
        return math.nan  # nothing was compiled beside a step of both
    return statistics.median(compiling[i] for i in both) / statistics.median(idle[i] for i in both)


def _worst(turns: list[tuple[float, float, float, bool]]) -> float:
    ratios = []
    last = turns[-1][0]
    for start in range(max(1, int(last - WINDOW_SECONDS) + 1)):
        inside = [t for t in turns if start <= t[0] < start + WINDOW_SECONDS]
        if inside:
            ratios.append(sum(t[1] for t in inside) / sum(t[2] for t in inside))
    return max(ratios)


def _told(number: float) -> str:
    return f"{number:d}" if isinstance(number, int) else f"{number:.2f}"


def _in_process(name: str, threads: int, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench", "compile", "--inside", name]
    environment = {**os.environ, "TORCH_TINY_CACHE": cache}
    command += ["--threads", str(threads)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _undecided(core: Any) -> int:
    return sum(not region["engine"] for plan in core.plans(0) for region in plan["regions"])


def _cpu_seconds(pid: int) -> float:
    """Of a worker and what it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
