"""The command: any number of programs, in forked processes, so that a crash costs one program.

With TORCH_TINY_ENGINE=uop everything is compiled; a program then has to run three times, since a
first call is not recorded. Operators that no_lowering.py names are left to PyTorch's kernels. There
a difference that the oracle shows to itself, once what it rounds is rounded anew, is told and
counted apart (rounding.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from util import COMPILED

from . import DifferenceError, NotAProgramError, as_test, differs, generate, reduce, run
from .rounding import hangs_on_rounding

Say = Callable[[str, str], None]
BATCH = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-going", type=int, default=1, help="differences to look for")
    parser.add_argument("--times", type=int, default=3 if COMPILED else 2, help="runs of each")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes beside each other")
    args = parser.parse_args()
    if args.jobs > 1:
        return share_out(args)
    started, seed, end, failures, roundings = time.time(), args.seed, args.seed + args.count, 0, 0
    while seed < end and failures < args.keep_going:
        seed, found, is_rounding = fuzz_in_child(seed, min(seed + BATCH, end), args.times)
        if found is not None:
            failures += not is_rounding
            roundings += is_rounding
            print("# hangs on rounding\n" * is_rounding + found, flush=True)
        told = f"{seed - args.seed} programs, {failures} differences, {roundings} roundings"
        print(f"{told}, {time.time() - started:.0f} s", flush=True)
    return 1 if failures else 0


def share_out(args: argparse.Namespace) -> int:
    """The same in several processes, a part of the programs for each."""
    cuts = [args.seed + args.count * i // args.jobs for i in range(args.jobs + 1)]
    options = ["--keep-going", str(args.keep_going), "--times", str(args.times)]
    parts = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--seed", str(a), "--count", str(b - a), *options]
        )
        for a, b in pairwise(cuts)
    ]
    return max(part.wait() for part in parts)


def fuzz_in_child(seed: int, end: int, times: int) -> tuple[int, str | None, bool]:
    """Run programs until one differs; returns the next seed, the difference as a test, and whether
    it hangs on rounding."""
    last, lines, test, is_rounding = seed, [], None, False

    def work(say: Say) -> None:
        for number in range(seed, end):
            say("seed", str(number))
            lines, difference = generate(random.Random(number), say=say, times=times)
            if difference:
                lines, difference = smallest(lines, difference, times)
                if COMPILED and hangs_on_rounding(lines, difference):
                    say("rounding", "")
                say("test", as_test(f"seed_{number}", lines, difference))
                return

    def hear(word: str, value: str) -> None:
        nonlocal last, lines, test, is_rounding
        if word == "seed":
            last, lines = int(value), []
        elif word == "line":
            lines.append(value)
        elif word == "rounding":
            is_rounding = True
        else:
            test = value

    status = in_child(work, hear)
    if status:
        crash = partial(crashes, times=times)
        smaller = reduce(lines, crash) if crash(lines) else lines
        test = as_test(f"seed_{last}", smaller, f"the process ended with status {status}")
    return last + 1, test, is_rounding


def smallest(
    lines: list[str], difference: DifferenceError, times: int
) -> tuple[list[str], DifferenceError]:
    lines = reduce(lines, partial(differs, times=times))
    try:
        run(lines, times=times)
    except DifferenceError as smaller:
        difference = smaller
    except NotAProgramError:  # it differs in some runs only
        pass
    return lines, difference


def crashes(lines: list[str], times: int) -> bool:
    def work(_: Say) -> None:
        with contextlib.suppress(DifferenceError, NotAProgramError):
            run(lines, times=times)

    return in_child(work, lambda *_: None) != 0


def spare_what_has_no_lowering() -> None:
    from no_lowering import NO_LOWERING, REAL_ONLY, REASONS, REFUSED

    from torch_tiny.engine import service

    assert service.engine is not None
    spared = frozenset({*NO_LOWERING, *REFUSED, *REAL_ONLY, *REASONS})
    service.engine.settings = replace(service.engine.settings, spared=spared)


def in_child(work: Callable[[Say], None], hear: Say) -> int:
    """Do `work` in a forked process and `hear` what it says; its exit status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            if COMPILED:
                spare_what_has_no_lowering()
            with os.fdopen(writing, "w", buffering=1) as out:
                work(lambda *said: print(json.dumps(said), file=out))
            status = 0
        except BaseException:  # a forked child must never return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as said:
        for line in said:
            hear(*json.loads(line))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
