"""The process that compiles, seen from the program: started when there is something to do.

Jobs and answers pass through one socket, each a line of JSON; an answer is followed by the bytes of
shared objects. A worker that dies or hangs takes one job with it; one that has grown large is
replaced. It leads a group of processes, gcc among them, that ends as a whole: when the program says
so, when it has ended in whatever way (engine/server.py sees to that), or when a job takes too long.
"""

import fcntl
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch_tiny import schemas
from torch_tiny.engine.plan import Made, from_bytes

SECONDS = 300.0
"""For one job, the start of the worker included."""
_PARTING = 2.0
"""Seconds for the worker to clear up once it is told to end."""
_FAIR_WAIT, _FAIR_SHARE = 10.0, 0.25
"""Seconds after which a worker that was given less of them than this gives way no longer."""
_MOST_RESIDENT = 1 << 30
"""Bytes of a worker after a job beyond which the next one gets a new worker."""
Share = Literal["idle", "lower", "equal"]
"""Of the processor: what the program leaves, less than the program's, as much."""
_PREFIX = "torch_tiny_worker_"
_PACKAGE = str(Path(__file__).absolute().parent.parent)
_FOREIGN = re.compile(r'"op":"((?!aten::)[^"]+)"')


@dataclass(frozen=True)
class Job:
    """What there is to compile, and where the code of regions is kept (engine/compile.py)."""

    trace: str
    everything: bool
    target: str
    cache: str | None = None
    context: str = ""
    refined: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()
    """Keys of code that does not load."""


class WorkerError(Exception):
    """The worker did not answer; the next job gets a new one."""


class Worker:
    """Used by one thread at a time; others wait."""

    def __init__(self, seconds: float = SECONDS, share: Share = "idle") -> None:
        """Idle, it gets a lower share when the program leaves it nothing."""
        self.seconds = seconds
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._share = share

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._running is None else self._running.process.pid

    def compile(self, job: Job) -> Made:
        """The plan of a trace and the code of its regions. Raises WorkerError."""
        others = schemas.of_others(set(_FOREIGN.findall(job.trace)))
        with self._lock:
            self._started()
            try:
                answer, libraries = self._answer({**vars(job), "schemas": others})
            except TimeoutError as error:
                why = f"no answer within {self.seconds:.0f} s"
                raise WorkerError(self._ended(why)) from error
            except (OSError, ValueError) as error:
                raise WorkerError(self._ended("the worker ended", str(error))) from error
            except BaseException:  # Ctrl-C: the answer to this job must not be taken for the next's
                self.stop()
                raise
            running = self._running
            is_large = running is not None and running.resident_bytes() > _MOST_RESIDENT
            if answer.get("hangs") or is_large:  # what gcc has started may go on
                self.stop()
        if "error" in answer:
            raise WorkerError(answer["error"])
        return from_bytes(answer, libraries)

    def stop(self) -> None:
        """End the process and all it has started, whatever they are doing."""
        running, self._running = self._running, None
        if running is not None:
            running.end(_PARTING)

    def leave(self) -> None:
        """In a forked child: the process is the parent's."""
        if self._running is not None:
            self._running.socket.close()

    def _answer(self, job: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + self.seconds
        running = self._started()
        running.ask(job, deadline)
        while self._share == "idle" and time.monotonic() + _FAIR_WAIT < deadline:
            before = running.cpu_seconds()
            with suppress(TimeoutError):
                return running.answer(time.monotonic() + _FAIR_WAIT)
            if running.cpu_seconds() - before < _FAIR_SHARE * _FAIR_WAIT:
                # The program leaves no core idle. A process may not take back that it gives way.
                self._share = "lower"
                self.stop()
                running = self._started()
                running.ask(job, deadline)
        return running.answer(deadline)

    def _started(self) -> "_Running":
        if self._running is not None and self._running.has_ended():
            self.stop()
        if self._running is None:
            self._running = _Running(self._share)
        return self._running

    def _ended(self, why: str, error: str = "") -> str:
        """With what the process said last, or why there is none."""
        running, self._running = self._running, None
        said = error if running is None else running.end(0)
        return f"{why}: {said}" if said else why


class Workers:
    """As many jobs at a time as there are workers, by those first that have been started."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._all = list(workers)
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()
        for worker in reversed(self._all):
            self._free.put(worker)

    @property
    def pids(self) -> list[int]:
        """Of the processes that there are."""
        return [worker.pid for worker in self._all if worker.pid is not None]

    def compile(self, job: Job) -> Made:
        """Raises WorkerError."""
        worker = self._free.get()
        try:
            return worker.compile(job)
        finally:
            self._free.put(worker)

    def stop(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.stop()

    def leave(self) -> None:
        """In a forked child: they are the parent's."""
        for worker in self._all:
            worker.leave()


class _Running:
    """A process, its socket and its folder."""

    def __init__(self, share: Share = "idle") -> None:
        self._received = bytearray()
        with ExitStack() as on_failure, ExitStack() as theirs:
            folder, lock = _new_folder()
            self._folder = folder
            on_failure.callback(remove_folder, folder)
            theirs.callback(os.close, lock)
            self.socket, stdin = socket.socketpair()
            on_failure.enter_context(self.socket)
            theirs.enter_context(stdin)
            errors = theirs.enter_context((folder / "errors").open("wb"))
            self.process = subprocess.Popen(
                [*_COMMAND, json.dumps(_paths()), _PACKAGE, str(folder), str(os.getpid()), share],
                stdin=stdin.fileno(),
                stdout=errors,
                stderr=errors,
                env=_environment(folder),
                cwd="/",
                pass_fds=[lock],  # for as long as it lives the folder is not swept
                # Ctrl-C is for the program. No session of its own: Linux shares cores out by
                # sessions before it looks at who gives way.
                process_group=0,
            )
            on_failure.pop_all()

    def ask(self, job: dict[str, Any], deadline: float) -> None:
        self._wait_until(deadline)
        self.socket.sendall(json.dumps(job).encode() + b"\n")

    def answer(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """To what was asked last; after a TimeoutError it may be waited for again."""
        while (end := self._received.find(b"\n")) < 0:
            self._received += self._more(deadline)
        answer: dict[str, Any] = json.loads(self._received[:end])
        while len(self._received) <= end + answer["bytes"]:
            self._received += self._more(deadline)
        libraries = bytes(self._received[end + 1 :])
        self._received.clear()
        return answer, libraries

    def cpu_seconds(self) -> float:
        """Of the process and of all it has started, gcc among them."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # of one that has just ended
                said = path.read_text().rpartition(")")[2].split()
                if int(said[2]) == self.process.pid:  # its group
                    ticks += sum(map(int, said[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Of the process alone; 0 where it has just ended."""
        with suppress(OSError):
            pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def has_ended(self) -> bool:
        """Without forgetting its number, which is that of its group."""
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, how) is not None
        except ChildProcessError:  # someone waits for all children of this program
            return True

    def end(self, patience: float) -> str:
        """Ask it to, make it, and clear up; what it said last."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + patience
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.002)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket.close()
        said = _last_line(self._folder / "errors")
        remove_folder(self._folder)
        return said

    def _more(self, deadline: float) -> bytes:
        self._wait_until(deadline)
        if data := self.socket.recv(1 << 20):
            return data
        raise ConnectionResetError

    def _wait_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self.socket.settimeout(remaining)


# Isolated: no variable of Python's and no current folder say what is imported, nor does `site`.
_COMMAND = (
    *(sys.executable, "-I", "-S", *(["-B"] if sys.flags.dont_write_bytecode else [])),
    "-c",
    "import json, sys, types; sys.path += json.loads(sys.argv[1]); "
    # Without its __init__, which imports torch: compiling needs a part of the package alone.
    "package = sys.modules['torch_tiny'] = types.ModuleType('torch_tiny'); "
    "package.__path__ = [sys.argv[2]]; "
    "from torch_tiny.engine.server import main; main(*sys.argv[3:])",
)


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_TINY_ENGINE": "aten",  # a worker has no workers
        "TORCH_TINY_DEVICES": "cpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TMPDIR": str(folder),  # of gcc's too: it goes with the worker
        "PATH": os.pathsep.join(filter(os.path.isabs, os.get_exec_path())),
    }


def _paths() -> list[str]:
    """Where the worker finds packages, after the standard library: ours first, then the program's.

    But neither the current folder nor that of the program's main file, unless we are there.
    """
    needed = [_folder_of(name) for name in ("torch_tiny", "torch", "tinygrad", "numpy")]
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    unsafe = set()
    for folder in (".", os.path.dirname(main_file or ".")):  # noqa: PTH120
        with suppress(FileNotFoundError):  # the current folder may be gone
            unsafe.add(os.path.realpath(folder))
    others = [p for p in sys.path if os.path.isabs(p) and os.path.realpath(p) not in unsafe]  # noqa: PTH117
    return list(dict.fromkeys([*filter(None, needed), *others]))


def _folder_of(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return str(Path(next(iter(spec.submodule_search_locations))).absolute().parent)


def _new_folder() -> tuple[Path, int]:
    """A folder for gcc, locked by an open file. What killed workers left behind goes first."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        with ExitStack() as on_failure:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            on_failure.callback(remove_folder, folder)
            # Another worker may sweep it before it is locked.
            with suppress(FileNotFoundError):
                lock = _beyond_the_standard_streams(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
                on_failure.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if folder.exists():
                    on_failure.pop_all()
                    return folder, lock


def _beyond_the_standard_streams(file: int) -> int:
    """A program without stdin opens its next file as 0, which the worker's own stdin replaces."""
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def _sweep(parent: Path) -> None:
    """Remove the folders of workers that have died."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_folder(folder)
            finally:
                os.close(lock)


def remove_folder(folder: Path) -> None:
    """Under another name first, so that a gcc that still runs can put nothing into it."""
    gone = folder.with_name(f"{folder.name}_gone")
    with suppress(OSError):
        folder.rename(gone)
        gone.rmdir()  # an empty one needs no file to be opened, where there may be too many
    shutil.rmtree(gone, ignore_errors=True)


def _last_line(errors: Path) -> str:
    with suppress(OSError, IndexError):
        return errors.read_text(errors="replace").strip().splitlines()[-1][:500]
    return ""
