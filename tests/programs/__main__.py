"""The command: any number of programs, in forked processes, so that a crash costs one program."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable

import torch

from . import DifferenceError, NotAProgramError, as_test, differs, generate, reduce, run

Say = Callable[[str, str], None]
BATCH = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-going", type=int, default=1, help="differences to look for")
    args = parser.parse_args()
    started, seed, end, failures = time.time(), args.seed, args.seed + args.count, 0
    while seed < end and failures < args.keep_going:
        seed, found = fuzz_in_child(seed, min(seed + BATCH, end))
        if found is not None:
            failures += 1
            print(found, flush=True)
        spent = time.time() - started
        print(f"{seed - args.seed} programs, {failures} differences, {spent:.0f} s", flush=True)
    return 1 if failures else 0


def fuzz_in_child(seed: int, end: int) -> tuple[int, str | None]:
    """Run programs until one differs; returns the next seed, and the difference as a test."""
    last, lines, test = seed, [], None

    def work(say: Say) -> None:
        for number in range(seed, end):
            say("seed", str(number))
            lines, difference = generate(random.Random(number), say=say)
            if difference:
                say("test", as_smallest_test(number, lines, difference))
                return

    def hear(word: str, value: str) -> None:
        nonlocal last, lines, test
        if word == "seed":
            last, lines = int(value), []
        elif word == "line":
            lines.append(value)
        else:
            test = value

    status = in_child(work, hear)
    if status:
        smaller = reduce(lines, crashes) if crashes(lines) else lines
        test = as_test(f"seed_{last}", smaller, f"the process ended with status {status}")
    return last + 1, test


def as_smallest_test(number: int, lines: list[str], difference: DifferenceError) -> str:
    lines = reduce(lines, differs)
    try:
        run(lines)
    except DifferenceError as smaller:
        difference = smaller
    return as_test(f"seed_{number}", lines, difference)


def crashes(lines: list[str]) -> bool:
    def work(_: Say) -> None:
        with contextlib.suppress(DifferenceError, NotAProgramError):
            run(lines)

    return in_child(work, lambda *_: None) != 0


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
