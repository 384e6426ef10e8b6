"""The command: soaks in a process of its own, then looks for what it left behind."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from .settings import DEVICES, MARK, UNWEIGHED

ROOT = Path(__file__).parent.parent.parent
_GRACE = 600  # seconds to start and to end


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="THREAD:JOB", help="play this job alone")
    parser.add_argument("--unweighed", action="store_true", help="memory may grow")
    args = parser.parse_args()
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "tmp"
        temporary.mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "TMPDIR": str(temporary),
            "TORCH_TINY_CACHE": str(Path(folder) / "cache"),
            "TORCH_TINY_ENGINE": "auto",
            "TORCH_TINY_WORKERS": "1",  # whose open files are known
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",  # else PyTorch keeps code for 1,024 shapes
            "TORCH_TINY_DEVICES": ",".join(["cpu"] * DEVICES),
            MARK: mark,
            UNWEIGHED: "1" if args.unweighed else "",
        }
        command = [sys.executable, "-m", "tests.soak.inside", str(args.minutes), str(args.seed)]
        status = subprocess.run(
            command + ([args.only] if args.only else []),
            cwd=ROOT,
            env=environment,
            timeout=args.minutes * 60 + _GRACE,
        ).returncode
        return 1 if status or _is_left(mark, temporary) else 0


def _is_left(mark: str, temporary: Path) -> bool:
    from .health import processes

    until = time.monotonic() + 5  # a process that was told to end needs a moment
    while (left := processes(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    # torch.optim imports Dynamo, which makes a folder for Inductor, on the CPU alone as well.
    mine = (path for path in temporary.iterdir() if not path.name.startswith("torchinductor_"))
    left += [str(path.relative_to(temporary)) for top in mine for path in (top, *top.rglob("*"))]
    for one in left:
        print(f"left behind: {one}")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
