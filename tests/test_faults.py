"""Whatever becomes of the worker, gcc and the disk: results stay right, it is told, it passes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import suppress
from functools import cache as cached
from pathlib import Path

import pytest
from harness import ROOT, environment, needs_cpu_memory, needs_tiny
from test_engine import SETTLE, auto

from torch_tiny.engine.plan import Code, Plan

pytestmark = [needs_tiny, needs_cpu_memory]

HOT = """
import os, signal, sys, tempfile
from pathlib import Path

class Hot:
    \"\"\"A function of its own for each size; its results are checked.\"\"\"
    def __init__(self, size):
        self.x = torch.arange(float(size), device="tiny")
        self.expected = size * (size + 1) / 2
    def __call__(self):
        assert (self.x + 1).sum().item() == self.expected

def compiled(size):
    \"\"\"Play one until it was compiled.\"\"\"
    done = service.engine.counts.compiles + 1
    step_until(lambda: service.engine.counts.compiles == done and settled(), Hot(size))

def failed(size):
    \"\"\"Play one until compiling it failed; why.\"\"\"
    done = service.engine.counts.failures + 1
    step_until(lambda: service.engine.counts.failures == done, Hot(size))
    return service.engine.counts.last_failure
"""

EMPTY = Plan([], [], {}, [])
CODE = (Code([], [], [], [], [], [], ""), b"code")

# A worker that starts at once and compiles nothing: the package is there but not imported.
QUICK = f"""
import sys, types
package = sys.modules["torch_tiny"] = types.ModuleType("torch_tiny")
package.__path__ = [{str(ROOT / "torch_tiny")!r}]
compile = sys.modules["torch_tiny.engine.compile"] = types.ModuleType("compile")
def compile_trace(trace, **_):
    from torch_tiny.engine.plan import Code, Made, Plan
    code = Code([], [], [], [], [], [], "")
    return Made(Plan([], [], {{}}, []), {{"key": (code, trace.encode() * 100_000)}})
compile.compile_trace = compile_trace
"""


def start_quickly(patch: pytest.MonkeyPatch, then: str = "") -> None:
    """Have workers be QUICK ones, and do something before they serve."""
    from torch_tiny.engine import worker

    *options, start = worker._COMMAND
    patch.setattr(worker, "_COMMAND", (*options, f"exec({QUICK + then!r}); {start}"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fake_gcc(folder: Path, script: str) -> str:
    """A PATH with a gcc that is this shell script."""
    folder.mkdir()
    gcc = folder / "gcc"
    gcc.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}")
    gcc.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


FAULTS = {
    "exit 3": "gcc failed with status 3",
    "echo no space left >&2; exit 1": "no space left",
    "exit 0": "No such file",
    'while [ "$1" != -o ]; do shift; done; echo garbage > "$2"': "no shared object",
}


def test_a_gcc_that_fails_is_told_and_passes(tmp_path: Path, cache: Path) -> None:
    gcc = tmp_path / "bin" / "gcc"
    auto(
        HOT
        + f"""
gcc = Path({str(gcc)!r})
for number, (script, reason) in enumerate({FAULTS!r}.items()):
    gcc.write_text("#!/bin/sh\\n" + script)
    assert reason in failed(100 + number), service.engine.counts
gcc.unlink()  # the real one comes next in the PATH
compiled(200)
""",
        cache,
        provokes="gcc failed with status 3",
        DEBUG="true",  # which tinygrad would take for a number
        PATH=fake_gcc(tmp_path / "bin", ""),
    )


def hangs(pid: Path) -> str:
    """The file appears with its content, so that one who waits for it can read it."""
    return f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 1000"


def test_a_hanging_gcc_ends_with_its_worker(tmp_path: Path, cache: Path) -> None:
    path = fake_gcc(tmp_path / "bin", hangs(tmp_path / "pid"))
    auto(
        HOT
        + f"""
gcc, real = Path({str(tmp_path / "bin" / "gcc")!r}), Path({str(tmp_path / "bin" / "real")!r})
gcc.rename(real)
compiled(50)  # starting the worker takes its time
real.rename(gcc)
service.engine.workers._all[0].seconds = 10
assert "no answer within 10 s" in failed(100), service.engine.counts
hanging = int(Path({str(tmp_path / "pid")!r}).read_text())
process = Path(f"/proc/{{hanging}}/stat")
assert not process.exists() or ") Z" in process.read_text()
service.engine.workers._all[0].seconds = 300
gcc.unlink()
compiled(200)
""",
        cache,
        provokes="no answer within",
        PATH=path,
    )


ENDINGS = {
    "_exit": "os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "ended": "sys.exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_outlives_the_program(ending: str, tmp_path: Path, cache: Path) -> None:
    """In the middle of a compile: no worker, no gcc, no folder, also with a forked child about."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = fake_gcc(tmp_path / "bin", hangs(tmp_path / "pid"))
    child = "\nchild = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
    program = f"""
step_until(Path({str(tmp_path / "pid")!r}).exists, Hot(100))
{child if ending == "killed" else ""}
print(service.engine.workers._all[0].pid, {"child" if ending == "killed" else 0}, flush=True)
{ENDINGS[ending]}
"""
    settings = {"TORCH_TINY_ENGINE": "auto", "TORCH_TINY_CACHE": str(cache), "PATH": path}
    settings["TMPDIR"] = str(temporary)
    worker, child_pid = map(int, _first_line(SETTLE + HOT + program, settings).split())
    gcc = int((tmp_path / "pid").read_text())
    try:
        end = time.monotonic() + 20
        while any(map(_lives, (worker, gcc))) or list(temporary.iterdir()):
            assert time.monotonic() < end, (worker, gcc, list(temporary.iterdir()))
            time.sleep(0.05)
    finally:
        if child_pid:
            os.kill(child_pid, signal.SIGKILL)


def _first_line(code: str, settings: dict[str, str]) -> str:
    """What a program prints, once it has ended; a child that it left may keep its output open."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment(settings),
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.wait(60)
    return line


def _lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_what_a_killed_worker_left_is_swept(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "torch_tiny_worker_dead").mkdir()
    auto(
        HOT
        + """
compiled(100)
folders = list(Path(tempfile.gettempdir()).glob("torch_tiny_*"))
assert len(folders) == 1 and "dead" not in folders[0].name, folders
""",
        cache,
        TMPDIR=str(tmp_path),
    )
    assert not list(tmp_path.glob("torch_tiny_*"))


def test_a_program_without_stdin_keeps_the_folder_of_its_worker(
    tmp_path: Path, cache: Path
) -> None:
    """As in daemons. The lock of the folder was file 0 there, and anybody's worker swept it."""
    auto(
        HOT
        + """
from torch_tiny.engine.worker import _sweep
os.close(0)
compiled(100)
_sweep(Path(tempfile.gettempdir()))
assert len(list(Path(tempfile.gettempdir()).glob("torch_tiny_worker_*"))) == 1
compiled(200)
""",
        cache,
        TMPDIR=str(tmp_path),
    )


def test_no_temporary_folder_is_told_and_import_works(cache: Path) -> None:
    """As where everything is read-only."""
    auto(
        """
import tempfile
def none(*args, **kwargs):
    raise FileNotFoundError("No usable temporary directory found")
good = tempfile.mkdtemp
tempfile.mkdtemp = none
"""
        + HOT
        + """
assert "No usable temporary directory" in failed(100)
tempfile.mkdtemp = good
compiled(200)
""",
        cache,
        provokes="No usable temporary directory",
    )


@cached
def why_no_mounts() -> str:
    """Why no file system can be mounted for a program alone."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return "no unshare"


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ("noexec", "compiled(100)"),
        ("ro", "compiled(100)"),  # then there is another one
        ("size=8k", 'assert "No space left" in failed(100), service.engine.counts'),
    ],
)
def test_an_odd_temporary_folder(options: str, program: str, tmp_path: Path, cache: Path) -> None:
    if reason := why_no_mounts():
        pytest.skip(f"nothing can be mounted: {reason}")
    mounted = f'mount -t tmpfs -o {options} none "$TMPDIR" && exec "$0" -c "$1"'
    (tmp_path / "tmp").mkdir()
    settings = {"TORCH_TINY_ENGINE": "auto", "TORCH_TINY_CACHE": str(cache)}
    code = SETTLE + HOT + program
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, sys.executable, code],
        cwd=ROOT,
        env=environment({**settings, "TMPDIR": str(tmp_path / "tmp")}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("FailureWarning" in done.stderr) == ("failed" in program), done.stderr


def test_a_full_disk_under_the_cache_is_told(cache: Path) -> None:
    auto(
        HOT
        + """
import errno
from torch_tiny.engine import cache
import torch_tiny
original = tempfile.NamedTemporaryFile
def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")
cache.tempfile.NamedTemporaryFile = full
compiled(100)
(failure,) = torch_tiny.report().failures
assert failure.kind == "cache", failure
cache.tempfile.NamedTemporaryFile = original
compiled(200)
assert len(list(Path(os.environ["TORCH_TINY_CACHE"]).glob("*.plan"))) == 1
""",
        cache,
        provokes="No space left on device",
    )


def test_what_a_killed_program_left_unfinished_goes_first(tmp_path: Path) -> None:
    from torch_tiny.engine.cache import PlanFiles

    (tmp_path / "left.part").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "left.part", (0, 0))
    (tmp_path / "left.lock").touch()
    files = PlanFiles(tmp_path, most_bytes=500)
    with files.alone("held", threading.Event(), 1):
        assert files.store("key", EMPTY) == ""
        assert sorted(path.name for path in tmp_path.iterdir()) == ["held.lock", "key.plan"]


def test_a_cache_that_can_only_be_read_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_tiny.engine.cache import PlanFiles

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    files = PlanFiles(cache)
    assert files.store("key", EMPTY) == files.store_code("region", *CODE) == ""
    monkeypatch.setattr(os, "utime", read_only)
    assert files.load("key") == (EMPTY, {})
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", read_only)
    assert "Read-only file system" in files.decide("region", {"1": "uop"}, False)


def test_a_plan_is_there_with_all_its_regions(cache: Path) -> None:
    """What was decided of one holds for so many threads, wherever it stands."""
    from torch_tiny.engine.cache import PlanFiles
    from torch_tiny.engine.plan import Place, Plan

    files = PlanFiles(cache)
    places = [Place(code, "add", [0], [0]) for code in ("one", "two", "one")]
    plan = Plan([[-1, 0, []]], places, {}, [])
    assert files.store("key", plan) == files.store_code("one", *CODE) == ""
    assert files.load("key") is None
    assert files.decide("two", {"1": "uop"}, False) == ""  # another process has dropped it
    assert files.store_code("two", *CODE) == ""
    assert files.load("key") == (plan, {"one": CODE, "two": CODE})
    assert (
        files.decide("two", {"1": "uop"}, False) == files.decide("two", {"2": "aten"}, False) == ""
    )
    assert files.decide("two", {"1": "aten"}, True) == ""  # of other code
    loaded = files.load("key")
    assert loaded is not None
    assert loaded[1]["two"][0].engines == {"1": "uop", "2": "aten"}


def test_a_worker_killed_or_stopped_100_times() -> None:
    """At random, between jobs and in them: each job is answered rightly or fails by name."""
    from torch_tiny.engine.worker import Job, Worker, WorkerError

    with pytest.MonkeyPatch.context() as patch:
        start_quickly(patch)
        chance = random.Random(0)
        worker = Worker(seconds=3)
        answered = failed = 0
        for number in range(100):
            pid = worker.pid
            harm = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, None])
            timer = None
            if pid is not None and harm is not None:
                worker.seconds = 0.3 if harm == signal.SIGSTOP else 3
                delay = chance.choice([0, chance.random() * 0.001])
                timer = threading.Timer(delay, _signal, (pid, harm))
                timer.start()
                if not delay:
                    timer.join()
            else:
                worker.seconds = 3
            try:
                _, library = worker.compile(Job(str(number), False, "cpu")).built["key"]
                assert library == str(number).encode() * 100_000
                answered += 1
            except WorkerError as error:
                assert "the worker ended" in str(error) or "no answer within" in str(error)
                failed += 1
            if timer is not None:
                timer.join()
        worker.seconds = 20
        if worker.pid is not None:
            _signal(worker.pid, signal.SIGCONT)
        worker.stop()
        assert worker.compile(Job("x", False, "cpu")).built["key"][1] == b"x" * 100_000
        worker.stop()
        assert answered > 20
        assert failed > 10


def test_a_worker_that_gets_no_processor_is_replaced_by_one_that_does_not_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one is that the program leaves no core idle for; here it is stopped."""
    from torch_tiny.engine import worker as module

    start_quickly(monkeypatch)
    worker = module.Worker(seconds=60)
    assert worker.compile(module.Job("x", False, "cpu")).built["key"][1] == b"x" * 100_000
    first = worker.pid
    assert first is not None
    assert os.sched_getscheduler(first) == os.SCHED_IDLE
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(module, "_FAIR_WAIT", 0.5)  # not for the start, on a busy machine
    assert worker.compile(module.Job("y", False, "cpu")).built["key"][1] == b"y" * 100_000
    assert worker.pid is not None
    assert worker.pid != first
    assert os.sched_getscheduler(worker.pid) != os.SCHED_IDLE
    worker.stop()


def test_a_worker_that_has_grown_large_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two jobs, none of which is lost."""
    from torch_tiny.engine import worker as module

    start_quickly(monkeypatch)
    worker = module.Worker(seconds=60)
    worker.compile(module.Job("x", False, "cpu"))
    first = worker.pid
    worker.compile(module.Job("x", False, "cpu"))
    assert worker.pid == first is not None
    monkeypatch.setattr(module, "_MOST_RESIDENT", 1 << 20)
    for _ in range(3):
        assert worker.compile(module.Job("y", False, "cpu")).built["key"][1] == b"y" * 100_000
        assert worker.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_worker_that_cannot_import_its_compiler_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_tiny.engine import worker as module

    (tmp_path / "tinygrad.py").write_text("raise ImportError('tinygrad is broken')")
    paths = module._paths()
    monkeypatch.setattr(module, "_paths", lambda: [str(tmp_path), *paths])
    worker = module.Worker()
    with pytest.raises(module.WorkerError, match="tinygrad is broken"):
        worker.compile(module.Job("x", False, "cpu"))
    worker.stop()


def test_a_worker_whose_answer_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tiny.engine import worker as module

    start_quickly(monkeypatch)
    running = module._Running()
    job = {**vars(module.Job("x", False, "cpu")), "schemas": {}}
    running.socket.sendall(json.dumps(job).encode() + b"\n")
    running.socket.recv(1)
    running.socket.close()
    assert running.process.wait(20) == -signal.SIGKILL
    assert not running._folder.exists()


# What a worker finds about itself, where the program's limits and signals are as set here.
LOOK = """
import os, resource, signal, subprocess
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def look(**_):
    command = 'echo "$DEBUG"; exit 3'
    child = subprocess.run(command, shell=True, capture_output=True, text=True)
    from torch_tiny.engine.plan import Made, Plan
    found = dict(limits=resource.getrlimit(resource.RLIMIT_DATA), debug=os.getenv("DEBUG"),
        status=child.returncode, said=child.stdout)
    return Made(Plan([], [], found, []), {})
compile.compile_trace = look
"""


def test_a_worker_in_odd_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower limits, ignored signals, no current folder, a variable that tinygrad would parse."""
    from torch_tiny.engine.worker import Job, Worker

    start_quickly(monkeypatch, LOOK)
    monkeypatch.setenv("DEBUG", "true")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    worker = Worker(20)
    plan = worker.compile(Job("x", False, "cpu")).plan.not_lowered
    worker.stop()
    assert plan["limits"] == [4 << 30, 4 << 30]
    assert plan["debug"] is None
    assert plan["said"] == "true\n"  # what gcc is told
    assert plan["status"] == 3


def test_a_worker_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program has too many open files for one of those that a worker needs."""
    from torch_tiny.engine.worker import _Running

    start_quickly(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.open(os.devnull, os.O_RDONLY)
    os.close(next_file)
    for room in range(20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_file + room, hard))
        running = None
        try:
            with suppress(OSError):
                running = _Running()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if running is not None:
            running.end(0)
        assert set(Path("/proc/self/fd").iterdir()) == before, room
        assert not list(tmp_path.iterdir()), room
        if running is not None:
            break
    assert running is not None
    assert room > 5


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def test_ten_processes_compile_a_plan_once(cache: Path) -> None:
    """One at a time looks whether it is there; the first is killed while it compiles."""
    from torch_tiny.engine.cache import PlanFiles

    def play(dies: bool) -> None:
        files = PlanFiles(cache)
        with files.alone("key", threading.Event(), 60):
            if files.load("key") is None:
                (cache / f"compiled by {os.getpid()}").touch()
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                files.store("key", EMPTY)
        assert files.load("key") is not None

    context = multiprocessing.get_context("fork")
    first = context.Process(target=play, args=(True,))
    first.start()
    first.join()
    others = [context.Process(target=play, args=(False,)) for _ in range(10)]
    for process in others:
        process.start()
    for process in others:
        process.join()
    assert [process.exitcode for process in (first, *others)] == [-signal.SIGKILL] + [0] * 10
    assert len(list(cache.glob("compiled by *"))) == 2
    assert not list(cache.glob("*.lock"))


@pytest.mark.parametrize("isolated", [[], ["-I"]])
def test_nothing_in_the_current_folder_is_executed(
    isolated: list[str], tmp_path: Path, cache: Path
) -> None:
    for name in ("resource", "fcntl", "numpy", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    paths = [path for path in environment({})["PYTHONPATH"].split(os.pathsep) if path]
    program = f"""
import sys
sys.path = [path for path in sys.path if path] + {paths!r}
import torch, torch_tiny, resource, fcntl, numpy
sys.path.insert(0, "")
"""
    done = subprocess.run(
        [sys.executable, *isolated, "-c", program + SETTLE + HOT + "compiled(100)"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_TINY_ENGINE": "auto", "TORCH_TINY_CACHE": str(cache)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert not (tmp_path / "executed").exists()


def test_a_plan_put_in_place_by_a_link_is_not_trusted(tmp_path: Path, cache: Path) -> None:
    from torch_tiny.engine.cache import PlanFiles

    files = PlanFiles(cache)
    assert files.store("key", EMPTY) == ""
    assert files.load("key") == (EMPTY, {})
    (cache / "key.plan").rename(tmp_path / "elsewhere")
    (cache / "key.plan").symlink_to(tmp_path / "elsewhere")
    assert files.load("key") is None
    (cache / "key.plan").unlink()
    os.mkfifo(cache / "key.plan", 0o600)
    assert files.load("key") is None  # and does not wait for a writer
