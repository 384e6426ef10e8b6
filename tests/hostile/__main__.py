"""Hostile values on every memory that is there, each in a process of its own.

python -m tests.hostile goes through 2,000 chains on each, python -m tests.hostile webgpu --count 99
--seed 7 through 99 others on one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("cpu", "cl", "webgpu")
TOGETHER = 24  # chains in a trace
PLAYED = 3  # the first call of a kind runs at once, on PyTorch's kernels


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first chain")
    args = parser.parse_args()
    if os.environ.get("TORCH_TINY_HOSTILE") is None:
        return max(_in_process(kind, args.count, args.seed) for kind in args.kinds)
    return _played(args.kinds[0], args.seed, args.count)


def _in_process(kind: str, count: int, seed: int) -> int:
    environment = {
        **os.environ,
        "TORCH_TINY_DEVICES": kind,
        "TORCH_TINY_ENGINE": "uop",
        "TORCH_TINY_HOSTILE": "1",
    }
    command = [sys.executable, "-m", "tests.hostile", kind, f"--count={count}", f"--seed={seed}"]
    root = Path(__file__).parent.parent.parent
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def _played(kind: str, first: int, count: int) -> int:
    import torch

    import torch_tiny
    from torch_tiny.portable.kind import find_kind

    from .chains import Question, difference, questions
    from .values import DTYPES, pairs

    # docs/devices.md says which denormals are zeros.
    halves = (torch.float16,)
    flushed = {"cl": halves, "webgpu": (*halves, torch.bfloat16, torch.float32)}.get(kind, ())
    lacks = () if kind == "cpu" else find_kind(kind).lacks
    memory = {d: tuple(t.to("tiny") for t in pairs(d)) for d in DTYPES if d not in lacks}
    started, asked, found = time.time(), 0, 0

    def play(part: list[Question]) -> list[str]:
        for _ in range(PLAYED):
            results = [q.chain.on("tiny", memory=memory[q.chain.dtype]) for q in part]
            torch.tiny.synchronize()
        pairs_of = zip(part, results, strict=True)
        return [f"{q.chain}: {text}" for q, r in pairs_of if (text := difference(q, r.cpu()))]

    for begin in range(first, first + count, TOGETHER):
        part = list(questions(range(begin, min(begin + TOGETHER, first + count)), lacks, flushed))
        asked += len(part)
        for text in play(part):
            found += 1
            print(text, flush=True)
    for failure in torch_tiny.report().failures:
        found += 1
        print(f"{failure.kind}: {failure.reason} {failure.where}", flush=True)
    spent = time.time() - started
    print(f"{kind}: {asked} chains, {found} differences, {spent:.0f} s", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
