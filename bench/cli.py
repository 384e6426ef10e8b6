"""The command line of the benchmark."""

import argparse
from pathlib import Path

from bench.measure import Result, Settings, compare
from bench.process import in_process
from bench.report import HEAD, INSIDE_HEAD, inside_rows, machine, means, row, write_json
from bench.sides import KINDS, opponents
from bench.workloads import WORKLOADS


def main() -> int:
    """Measure, print a line for each result as it comes, write the JSON; the exit status."""
    options = _options()
    about = in_process(machine)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    chosen = [workload for workload in WORKLOADS if workload.name in options.only]
    for workload in chosen:
        print(f"  {workload.name:<16}{workload.what}")
    print(f"\n{HEAD}")
    results: list[Result] = []
    for threads in options.threads:
        settings = Settings(
            threads, options.rounds, options.seconds, options.apart, not options.steady
        )
        for workload in chosen:
            met = opponents(about["memory"], options.against, has_optimizer=workload.has_optimizer)
            if not met:
                continue
            for result in compare(workload, met, settings):
                results.append(result)
                print(row(result), flush=True)
    write_json(options.json, results, about)
    print("", INSIDE_HEAD, *inside_rows(results), "", *means(results), sep="\n")
    above = [result for result in results if not result.passed]
    print(f"{len(above)} of {len(results)} above their bar; all numbers: {options.json}")
    return 1 if options.check and above else 0


def _options() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Time workloads on device='tiny' beside PyTorch. A ratio is our time over "
        "theirs: the median of all rounds, with its quartiles. TORCH_TINY_DEVICES says which "
        "memory tiny lives in, TORCH_TINY_ENGINE=aten that nothing is to be compiled.",
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--against",
        nargs="+",
        choices=KINDS,
        default=["eager"],
        metavar="KIND",
        help=f"opponents: {', '.join(KINDS)} (eager); those with another optimizer only meet "
        "workloads that have one",
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (5)")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="for each side in each round (0.5)"
    )
    parser.add_argument("--apart", action="store_true", help="each side in a process of its own")
    parser.add_argument("--steady", action="store_true", help="leave out first steps")
    parser.add_argument("--json", type=Path, default=Path("build", "bench.json"))
    parser.add_argument(
        "--check", action="store_true", help="fail if a bar is not met, a failure included"
    )
    return parser.parse_args()
