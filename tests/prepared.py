"""Programs in processes that have imported torch already, which is most of what a start takes.

One process waits and forks for each program. It has nothing of torch_tiny, so every program reads
its own TORCH_TINY_ variables; there is one such process for each set of other variables.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from functools import cache
from pathlib import Path
from typing import Any


def run(code: str, env: dict[str, str], cwd: Path, timeout: float) -> tuple[int, str, str]:
    """As `python -c` would: the status, what was printed, and the errors."""
    others = {k: v for k, v in env.items() if not k.startswith(("TORCH_TINY_", "PYTEST_"))}
    server = _server(json.dumps(others), cwd)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        pid = server.ask(60, code=code, env=env, out=str(out), err=str(err))
        try:
            status = server.answer(timeout)
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            server.answer(60)
            raise subprocess.TimeoutExpired(code, timeout) from None
        return status, out.read_text(), err.read_text()


class _Server:
    """A line with a program for it, two back: the number of its process, and how that ended."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**env, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )

    def ask(self, timeout: float, **request: Any) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self.answer(timeout)

    def answer(self, timeout: float) -> int:
        assert self._process.stdout
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                raise TimeoutError
            if not (byte := os.read(self._process.stdout.fileno(), 1)):
                raise RuntimeError(f"the waiting process ended with {self._process.wait()}")
            line += byte
        return int(line)


_server = cache(lambda env, cwd: _Server(json.loads(env), cwd))


def _next_program() -> dict[str, Any]:
    """In the process of a program; the one that waits goes on until nobody can ask any more."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            request: dict[str, Any] = json.loads(line)
            return request
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _become(program: dict[str, Any]) -> None:
    """Files for the streams, the environment, an empty main module."""
    for stream, path, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, program["out"], os.O_WRONLY | os.O_CREAT),
        (2, program["err"], os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, how, 0o600), stream)
    os.environ.clear()
    os.environ.update(program["env"])
    sys.path[0], sys.argv = "", ["-c"]
    sys.modules["__main__"] = types.ModuleType("__main__")


if __name__ == "__main__":
    import torch  # noqa: F401

    program = _next_program()
    _become(program)
    exec(compile(program["code"], "<string>", "exec"), sys.modules["__main__"].__dict__)
