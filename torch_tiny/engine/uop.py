"""The `uop` engine: takes hot traces from the core, has them compiled, and installs the plans."""

import atexit
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tiny import _C, failures
from torch_tiny.engine.cache import PlanFiles, key_of
from torch_tiny.engine.loadable import as_file
from torch_tiny.engine.settings import Settings, from_environment, why_not_compiled
from torch_tiny.engine.worker import Worker

_POLL = 0.5  # seconds between looks at what was decided
_MOST_UNDECIDED = 1024


@dataclass
class Counts:
    """What compiling has cost and given, for reports."""

    compiles: int = 0
    cache_hits: int = 0
    failures: int = 0
    """Traces that could not be compiled, and calls that a fault keeps out of compiled code."""
    seconds_finished: float = 0.0
    begun: float | None = None
    """When the compile that is under way was begun."""
    waiting: int = 0
    not_lowered: dict[str, str] = field(default_factory=dict)
    last_failure: str = ""

    def note_failure(self, reason: str, where: str) -> None:
        """Count it here, and have the user told."""
        self.failures += 1
        self.last_failure = reason
        failures.note("compile", reason, where)

    def note_plan(self, made: dict[str, Any], lines: list[str]) -> None:
        """What of a compiled trace stays calls, and why. `lines` are the user's, of each call."""
        self.not_lowered.update(made["not_lowered"])
        for call, reason in made["failed"]:
            self.note_failure(reason, lines[call])

    @property
    def seconds_compiling(self) -> float:
        """With what the compile under way has taken so far."""
        begun = self.begun
        return self.seconds_finished + (0.0 if begun is None else time.monotonic() - begun)


class Engine:
    """One per process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self._files = None if settings.cache is None else PlanFiles(settings.cache)
        self._worker = Worker()
        self._undecided: dict[tuple[int, int], str] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve the core; nothing is started before there is something to compile."""
        _C.set_validate(self.settings.validate)
        _C.set_cuda_graphs(self.settings.cuda_graphs)
        if self.settings.mode == "uop" or self.settings.validate:
            _C.set_compile_now(self._compile_now)
            _C.set_mode("uop")
        else:
            _C.set_mode("auto")
            self._start_thread()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._restart)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="torch_tiny", daemon=True)
        self._thread.start()

    def _restart(self) -> None:
        """In a forked child: threads stay behind, the worker is the parent's."""
        self._worker.leave()
        self._worker = Worker()
        self._undecided.clear()
        self._ends = threading.Event()  # the parent's may have been locked
        self.counts.begun, self.counts.waiting = None, 0
        _C.reset_jobs()
        if self._thread is not None:
            self._start_thread()

    def _serve(self) -> None:
        while not self._ends.is_set():
            try:
                self._serve_once()
            except Exception as error:  # nobody else would take the next job
                failures.note("compile", f"{type(error).__name__}: {error}", "")
                self._ends.wait(_POLL)

    def _serve_once(self) -> None:
        job = _C.next_job(_POLL)
        if job is None:
            self._keep_decisions()
            return
        self.counts.waiting += 1
        try:
            self._try_to_compile(*job, everything=False)
        finally:
            self.counts.waiting -= 1

    def stop(self) -> None:
        """End the worker and the thread, and keep what was decided."""
        self._ends.set()
        self._worker.stop()
        _C.wake()
        if self._thread is not None:
            self._thread.join(2 * _POLL)
        self._keep_decisions()

    def _compile_now(self, device: int, plan: int, trace: str, lines: list[str]) -> str:
        """At first sight: compile, or say why not where everything has to be compiled."""
        everything = self.settings.mode == "uop"
        made = self._try_to_compile(device, plan, trace, lines, everything)
        if not everything:
            return ""
        if isinstance(made, str):
            return f"TORCH_TINY_ENGINE=uop: compiling failed: {made}"
        if made["failed"]:
            return f"TORCH_TINY_ENGINE=uop: compiling failed: {made['failed'][0][1]}"
        refused = "; ".join(
            f"{op} ({why})"
            for op, why in sorted(made["not_lowered"].items())
            if not self.settings.spared & {op, why.rpartition(": ")[2]}
        )
        return f"TORCH_TINY_ENGINE=uop: there is no lowering for {refused}" if refused else ""

    def _try_to_compile(
        self, device: int, plan: int, trace: str, lines: list[str], everything: bool
    ) -> dict[str, Any] | str:
        """The plan, or what went wrong: then the trace goes on as it is, and that is counted."""
        try:
            target = _target(device)
            if missing := why_not_compiled(target):
                failures.note("missing", missing, "")
                return missing
            made = self._compile(device, plan, trace, everything, target)
            self.counts.note_plan(made, lines)
            return made
        except Exception as error:  # a worker, a disk, a library: none of them is the program's
            reason = f"{type(error).__name__}: {error}"
            if not self._ends.is_set():
                self.counts.note_failure(reason, lines[0])
            return reason

    def _compile(
        self, device: int, plan: int, trace: str, everything: bool, target: str
    ) -> dict[str, Any]:
        if self._files is None:
            made, library = self._made(trace, everything, target)
            self._install(device, plan, made, library)
            return made
        key = key_of(trace, everything, target, torch.get_num_threads())
        with self._files.alone(key, self._ends, self._worker.seconds):
            found = self._files.load(key)
            if found is not None and self._fits(device, plan, *found):
                self.counts.cache_hits += 1
                made = found[0]
            else:
                made, library = self._made(trace, everything, target)
                if trouble := self._files.store(key, made, library):
                    failures.note("cache", trouble, "")
                self._install(device, plan, made, library)
        if any(not region["engine"] for region in made["regions"]):
            self._undecided[device, plan] = key
            if len(self._undecided) > _MOST_UNDECIDED:
                del self._undecided[next(iter(self._undecided))]
        return made

    def _fits(self, device: int, plan: int, made: dict[str, Any], library: bytes) -> bool:
        """Whether a plan from disk could be installed; another system may have left it there."""
        try:
            self._install(device, plan, made, library)
        except RuntimeError:
            return False
        return True

    def _made(self, trace: str, everything: bool, target: str) -> tuple[dict[str, Any], bytes]:
        self.counts.begun = time.monotonic()
        try:
            made = self._worker.compile(trace, everything, target)
            self.counts.compiles += 1
        finally:
            self.counts.seconds_finished = self.counts.seconds_compiling
            self.counts.begun = None
        return made

    def _install(self, device: int, plan: int, made: dict[str, Any], library: bytes) -> None:
        if not made["regions"]:
            return
        if not library:
            _C.install(device, plan, "", made["steps"], made["regions"])
            return
        with as_file(library) as path:
            _C.install(device, plan, path, made["steps"], made["regions"])

    def _keep_decisions(self) -> None:
        """Write which engine was faster beside the kernels, for the next process."""
        if self._files is None:
            return
        undecided = dict(self._undecided)  # threads that compile go on adding to it
        plans = {
            (device, state["plan"]): state["regions"]
            for device in {device for device, _ in undecided}
            for state in _C.plans(device)
        }
        for plan, key in undecided.items():
            engines = [region["engine"] for region in plans.get(plan, [])]
            if all(engines):
                self._undecided.pop(plan, None)
                if engines and (trouble := self._files.decide(key, engines)):  # else it was dropped
                    failures.note("cache", trouble, "")


def _target(device: int) -> str:
    """What to compile for on tiny:device."""
    if _C.device_host(device) == "cpu":
        return "cpu"
    host = torch.device(_C.device_host(device))
    major, minor = torch.cuda.get_device_capability(host)
    return f"sm_{major}{minor}"


engine: Engine | None = None


def install() -> None:
    """Start the engine that the environment asks for."""
    global engine
    settings = from_environment()
    if settings.mode == "aten":
        return
    hosts = {_C.device_host(device).partition(":")[0] for device in range(_C.device_count())}
    if settings.mode == "uop" and (missing := why_not_compiled("cpu" if "cpu" in hosts else "")):
        raise RuntimeError(f"TORCH_TINY_ENGINE=uop: {missing}")
    engine = Engine(settings)
    engine.start()
