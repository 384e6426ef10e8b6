"""The operator database and random programs on portable devices: what passes, what falls back.

    python -m tests.devices --kinds cl webgpu --samples 3 --programs 2000 --table docs/devices.md

Items run in processes of their own, --jobs of them at a time, so that a crash costs one item.
--table writes the list of operators that fall back to the host into a document.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

CHECKS = ("forward", "view", "inplace", "backward", "second_order")
SECONDS = 300  # for an item
LEAST_PASSED = 0.95  # of the applicable items
LEAST_ON_DEVICE = 0.85  # of the operators: without the host
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["cl", "webgpu"])
    parser.add_argument("--samples", type=int, default=3, help="of each item; 0 for all")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--one-in", type=int, default=1, help="look at every n-th item")
    parser.add_argument("--checks", nargs="*", default=CHECKS)
    parser.add_argument("--only", default="", help="items whose 'check operator' matches this")
    parser.add_argument("--jobs", type=int, default=1, help="processes for each kind")
    parser.add_argument("--log", type=Path, help="a file that gets every result as a line")
    parser.add_argument("--from-log", type=Path, help="such a file, in place of running anything")
    parser.add_argument("--table", type=Path, help="the document to write the table into")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)  # part, first item
    args = parser.parse_args()
    if args.child:
        return child(*args.child, args)
    results = logged(args.from_log) if args.from_log else measured(args)
    failed = False
    for kind, found in results.items():
        print("\n".join(summary(kind, found)), flush=True)
        failed |= bool(missed(found))
        if args.programs and not args.from_log:
            failed |= bool(programs(kind, args.programs, args.jobs))
            failed |= diagonals(kind)
    if args.table:
        write_table(args.table, results)
    return int(failed)


def measured(args: argparse.Namespace) -> dict[str, list[Result]]:
    with ThreadPoolExecutor(args.jobs * len(args.kinds)) as pool:
        parts = {
            k: [pool.submit(database, k, n, args) for n in range(args.jobs)] for k in args.kinds
        }
        return {kind: [r for part in found for r in part.result()] for kind, found in parts.items()}


def logged(path: Path) -> dict[str, list[Result]]:
    """What --log has written; the last result of an item counts."""
    last: dict[str, dict[tuple[str, str], Result]] = {}
    for line in path.read_text().splitlines():
        said = json.loads(line)
        last.setdefault(said["kind"], {})[said["check"], said["op"]] = said
    return {kind: list(found.values()) for kind, found in sorted(last.items())}


def database(kind: str, part: int, args: argparse.Namespace) -> list[Result]:
    """Every item of a part, a new process after each crash."""
    results: list[Result] = []
    begin, total = 0, None
    while total is None or begin < total:
        command = [
            *(sys.executable, "-m", "tests.devices", "--child", str(part), str(begin)),
            *("--samples", str(args.samples), "--one-in", str(args.one_in)),
            *("--jobs", str(args.jobs), "--only", args.only, "--checks", *args.checks),
        ]
        environment = {
            **os.environ,
            "TORCH_TINY_DEVICES": kind,
            "PYTHONPATH": python_path(),
            "PYTHONWARNINGS": "ignore",
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        started: Result | None = None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            total = said.pop("total", total)
            begin = said.pop("number", begin)
            if "status" in said:
                started = None
                begin += 1
                keep(results, said, kind, args)
            else:
                started = said
        if process.wait() and started is not None:
            keep(
                results, {**started, "status": "crash", "why": f"{process.returncode}"}, kind, args
            )
            begin += 1
        elif process.returncode or total is None:
            raise RuntimeError(f"no items ran on {kind}: status {process.returncode}")
    return results


def keep(results: list[Result], said: Result, kind: str, args: argparse.Namespace) -> None:
    results.append(said)
    if args.log:
        with args.log.open("a") as file:
            file.write(json.dumps({"kind": kind, **said}) + "\n")
    if len(results) % 100 == 0:
        counts = Counter(result["status"] for result in results)
        print(f"{kind}: {len(results)} items, {dict(counts)}", flush=True)


def child(part: int, begin: int, args: argparse.Namespace) -> int:
    """Run the items of a part; say before and after each what it is and how it went."""
    import torch
    from opdb.compare import NotApplicable, synchronize
    from opdb.items import items
    from opdb.referee import assert_as_exact
    from opdb.samples import limited

    import torch_tiny  # noqa: F401  (registers the device where it is not installed)

    torch.set_num_threads(1)
    chosen = [i for c in args.checks for i in items(c) if i.dtype == torch.float32]
    chosen = [i for i in chosen if re.search(args.only, f"{i.check} {i.op.full_name}")]
    chosen = chosen[:: args.one_in][part :: args.jobs]
    say({"total": len(chosen)})
    for number, item in list(enumerate(chosen))[begin:]:
        about = {"number": number, "check": item.check, "op": item.op.full_name}
        say(about)
        torch.tiny.reset_metrics()
        status, why, started = "passed", "", time.monotonic()
        signal.alarm(SECONDS)
        try:
            with limited(args.samples):
                try:
                    item.run("tiny")
                except AssertionError:  # rounding, where float64 says so
                    assert_as_exact(item, "tiny")
        except NotApplicable as error:
            status, why = "n/a", str(error)
        except TypeError as error:
            lacks = ") has no " in str(error)  # a type that the hardware does not have
            status, why = "n/a" if lacks else "failed", f"TypeError: {error}"[:500]
        except Exception as error:
            status, why = "failed", f"{type(error).__name__}: {error}"[:500]
        finally:
            try:
                synchronize("tiny")
            except Exception as error:
                status, why = "failed", f"late {type(error).__name__}: {error}"[:500]
            signal.alarm(0)
        fallbacks = sorted({one["reason"] for one in torch.tiny.metrics()["fallbacks"]})
        seconds = round(time.monotonic() - started, 2)
        say({**about, "status": status, "why": why, "fallbacks": fallbacks, "seconds": seconds})
    return 0


def say(what: Result) -> None:
    print(json.dumps(what), flush=True)


def summary(kind: str, results: list[Result]) -> list[str]:
    """A line per check, and how many operators never needed the host."""
    lines = [f"op_db, float32, on {kind}"]
    for check in (*CHECKS, "all"):
        here = [r for r in results if check in (r["check"], "all")]
        counts = Counter(result["status"] for result in here)
        if here and (passed := rate_passed(here)) is not None:
            others = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
            applicable = counts.total() - counts["n/a"]
            lines.append(f"  {check:<14}{passed:>8.2%} of {applicable:>5} pass ({others})")
    lines.append(f"  {rate_on_device(results):.2%} of the operators without the host")
    return lines + [f"  {why}" for why in missed(results)]


def missed(results: list[Result]) -> list[str]:
    """What is not as good as it has to be."""
    bars = (
        (rate_passed(results) or 0.0, LEAST_PASSED, "of the items pass"),
        (rate_on_device(results), LEAST_ON_DEVICE, "of the operators run on the device"),
    )
    crashed = (f"{r['check']} {r['op']}" for r in results if r["status"] == "crash")
    return [
        *(f"less than {least:.0%} {what}" for rate, least, what in bars if rate < least),
        *(f"{item} crashes" for item in crashed),
    ]


def rate_passed(results: list[Result]) -> float | None:
    """Of the applicable items; None where there is none."""
    counts = Counter(result["status"] for result in results if result["status"] != "n/a")
    return counts["passed"] / counts.total() if counts else None


def rate_on_device(results: list[Result]) -> float:
    operators = {r["op"] for r in results if r["status"] != "n/a"}
    on_host = {r["op"] for r in results if r.get("fallbacks")}
    return 1 - len(on_host & operators) / max(len(operators), 1)


def programs(kind: str, count: int, jobs: int) -> int:
    """Nonzero when a random program differs from the CPU's."""
    environment = {**os.environ, "TORCH_TINY_DEVICES": kind, "PYTHONPATH": python_path()}
    print(f"random programs on {kind}", flush=True)
    running = [
        subprocess.Popen(
            (
                *(sys.executable, "-m", "tests.programs", "--keep-going", "9"),
                *("--count", str(-(-count // jobs)), "--seed", str(part * 1_000_000)),
            ),
            cwd=ROOT,
            env=environment,
        )
        for part in range(jobs)
    ]
    return max(process.wait() for process in running)


def diagonals(kind: str) -> bool:
    """Whether the diagonal family is wrong, or needs the host."""
    print(f"diagonals on {kind}, without the host", flush=True)
    environment = {
        **os.environ,
        "TORCH_TINY_DEVICES": kind,
        "TORCH_TINY_FALLBACK": "error",
        "PYTHONPATH": python_path(),
    }
    command = [sys.executable, "tests/compiled_diagonals.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0


def python_path() -> str:
    return f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


_BEGIN, _END = "<!-- fallbacks -->", "<!-- end of fallbacks -->"


def write_table(path: Path, results: dict[str, list[Result]]) -> None:
    """Replace what stands between two marks of a document."""
    by_operator: dict[str, dict[str, set[str]]] = {}
    for kind, found in results.items():
        for result in found:
            for op in result.get("fallbacks", ()):
                by_operator.setdefault(op, {}).setdefault(kind, set()).add(result["op"])
    rows = ["| operator on the host | kinds | seen in |", "|---|---|---|"]
    for op, kinds in sorted(by_operator.items()):
        seen = sorted(set().union(*kinds.values()))
        more = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
        rows.append(f"| {op} | {', '.join(sorted(kinds))} | {', '.join(seen[:4])}{more} |")
    text = path.read_text()
    table = "\n".join((_BEGIN, *rows, _END))
    path.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: table, text, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main())
