"""What runs in the worker (engine/worker.py): jobs in, answers out, until the program has ended."""

import json
import os
import queue
import resource
import select
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_tiny import schemas
from torch_tiny.engine.worker import remove_folder

_MOST_MEMORY = 8 << 30
# Of the program's variables, besides TORCH_TINY_*. torch is imported for decompositions alone.
_SEEN = ("HOME", "PATH", "TMPDIR", "TORCH_DEVICE_BACKEND_AUTOLOAD")
_LOOK = 1.0  # seconds between looks whether the program lives


def main(folder: str, program: str, share: str) -> None:
    """Serve the process of this number, which holds the other end of standard input."""
    connection = socket.socket(fileno=os.dup(0))
    if "san.so" not in os.environ.get("LD_PRELOAD", ""):  # a sanitizer reserves more at once
        _limit(resource.RLIMIT_DATA, _MOST_MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else gcc's status is lost
    os.unsetenv("LD_PRELOAD")  # an allocator or a profiler of the program's is nothing for gcc
    # tinygrad makes numbers of what it finds in many names, DEBUG among them. gcc inherits the
    # process's own environment, which this does not change.
    os.environ = {  # type: ignore[assignment]  # noqa: B003
        name: value
        for name, value in os.environ.items()
        if name in _SEEN or name.startswith("TORCH_TINY_")
    }
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        """A thread of its own, so that the end of the program ends a compile that is under way."""
        try:
            _receive(connection, jobs, int(program))
        finally:  # a program that was killed with an answer unread is an error
            _end(Path(folder))

    threading.Thread(target=receive, daemon=True).start()
    if share != "equal":
        os.nice(5)
    if share == "idle":  # this thread and gcc, not the one that sees the program end
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        _serve(connection, jobs)
    finally:
        _end(Path(folder))


def _limit(what: int, most: int) -> None:
    """Unless the program's own limit is lower."""
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))


def _receive(connection: socket.socket, jobs: "queue.SimpleQueue[bytes]", program: int) -> None:
    """Until the program has ended; its forked children may still hold its end of the socket."""
    pending = b""
    while os.getppid() == program:
        if not select.select([connection], [], [], _LOOK)[0]:
            continue
        data = connection.recv(1 << 20)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            jobs.put(line)


def _serve(connection: socket.socket, jobs: "queue.SimpleQueue[bytes]") -> None:
    known: dict[str | None, Any] = {}
    while True:
        job = json.loads(jobs.get())
        try:
            answer = _answer(job, known)
        except Exception as error:  # one trace's trouble is not the next one's
            said = {"error": f"{type(error).__name__}: {error}", "bytes": 0}
            said["hangs"] = isinstance(error, TimeoutError)
            answer = json.dumps(said).encode() + b"\n"
        connection.sendall(answer)


def _answer(job: dict[str, Any], known: dict[str | None, Any]) -> bytes:
    """known: by folder of the cache, what was compiled so far."""
    from torch_tiny.engine.cache import PlanFiles  # why an import fails is told, too
    from torch_tiny.engine.compile import compile_trace
    from torch_tiny.engine.plan import Remembered, as_bytes

    folder, anew, others = (job.pop(name) for name in ("cache", "anew", "schemas"))
    if folder not in known:
        known[folder] = Remembered(None if folder is None else PlanFiles(Path(folder)))
    known[folder].forget(anew)
    schemas.learn(others)
    return as_bytes(compile_trace(**job, known=known[folder]))


def _end(folder: Path) -> None:
    """With everything that was started here."""
    remove_folder(folder)
    os.killpg(0, signal.SIGKILL)
