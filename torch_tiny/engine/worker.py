"""A process that compiles: jobs come on its standard input, answers go to its standard output.

Each is a line of JSON. A worker that dies, hangs or grows too large takes one job with it.
"""

import json
import os
import resource
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 300.0
"""For one job, the start of the worker included."""
_MOST_MEMORY = 8 << 30


class WorkerError(Exception):
    """The worker did not answer; the next job gets a new one."""


class Worker:
    """The other end: starts the process when there is something to do."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, trace: str, library: Path, everything: bool, target: str) -> dict[str, Any]:
        """Have a trace compiled into `library`; the plan. Raises WorkerError."""
        process = self._started()
        assert process.stdin is not None
        job = {"trace": trace, "library": str(library), "everything": everything, "target": target}
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(self._line(process))
        except (OSError, ValueError) as error:
            self.stop()
            raise WorkerError(str(error)) from error
        if "error" in answer:
            raise WorkerError(answer["error"])
        plan: dict[str, Any] = answer["plan"]
        return plan

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torch_tiny.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the program
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(SECONDS):
                raise OSError(f"no answer within {SECONDS:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise OSError("the worker ended")
        return line


_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_TINY_ENGINE": "aten",  # a worker has no workers
    "TORCH_TINY_DEVICES": "cpu",
}


def main() -> None:
    """Serve until the input ends."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    from torch_tiny.engine.compile import compile_trace

    for line in sys.stdin:
        job = json.loads(line)
        try:
            library = Path(job["library"])
            plan = compile_trace(job["trace"], library, job["everything"], job["target"])
            answer: dict[str, Any] = {"plan": vars(plan)}
        except Exception as error:  # one trace's trouble is not the next one's
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
