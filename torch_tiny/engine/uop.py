"""The `uop` engine: takes hot traces from the core, has them compiled, and installs the plans."""

import atexit
import itertools
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_tiny import _C
from torch_tiny.engine.cache import PlanFiles, key_of
from torch_tiny.engine.settings import Settings, from_environment, why_not_compiled
from torch_tiny.engine.worker import Worker

_POLL = 0.5  # seconds between looks at what was decided


@dataclass
class Counts:
    """What compiling has cost and given, for reports."""

    compiles: int = 0
    cache_hits: int = 0
    failures: int = 0
    seconds_compiling: float = 0.0
    waiting: int = 0
    not_lowered: dict[str, str] = field(default_factory=dict)
    last_failure: str = ""


class Engine:
    """One per process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self._files = None if settings.cache is None else PlanFiles(settings.cache)
        self._worker = Worker()
        self._undecided: dict[tuple[int, int], tuple[str, dict[str, Any], bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="torch_tiny_")
        self._ends = threading.Event()
        self._numbers = itertools.count()
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
        """In a forked child: threads stay behind, the worker and the folder are the parent's."""
        self._worker = Worker()
        self._folder._finalizer.detach()  # type: ignore[attr-defined]
        self._folder = tempfile.TemporaryDirectory(prefix="torch_tiny_")
        self._undecided.clear()
        _C.reset_jobs()
        if self._thread is not None:
            self._start_thread()

    def _serve(self) -> None:
        while not self._ends.is_set():
            job = _C.next_job(_POLL)
            if job is not None:
                self.counts.waiting += 1
                self._try_to_compile(*job, everything=False)
                self.counts.waiting -= 1
            elif self._undecided:
                self._keep_decisions()

    def stop(self) -> None:
        """End the worker and the thread, and keep what was decided."""
        self._ends.set()
        self._worker.stop()
        _C.wake()
        if self._thread is not None:
            self._thread.join(2 * _POLL)
        self._keep_decisions()

    def _compile_now(self, device: int, plan: int, trace: str) -> str:
        """At first sight: compile, or say why not where everything has to be compiled."""
        everything = self.settings.mode == "uop"
        made = self._try_to_compile(device, plan, trace, everything)
        if not everything:
            return ""
        if isinstance(made, str):
            return f"TORCH_TINY_ENGINE=uop: compiling failed: {made}"
        refused = "; ".join(
            f"{op} ({why})"
            for op, why in sorted(made["not_lowered"].items())
            if op not in self.settings.spared
        )
        return f"TORCH_TINY_ENGINE=uop: there is no lowering for {refused}" if refused else ""

    def _try_to_compile(
        self, device: int, plan: int, trace: str, everything: bool
    ) -> dict[str, Any] | str:
        """The plan, or what went wrong: then the trace goes on as it is, and that is counted."""
        try:
            return self._compile(device, plan, trace, everything)
        except Exception as error:  # a worker, a disk, a library: none of them is the program's
            self.counts.failures += 1
            self.counts.last_failure = f"{type(error).__name__}: {error}"
            return self.counts.last_failure

    def _compile(self, device: int, plan: int, trace: str, everything: bool) -> dict[str, Any]:
        target = _target(device)
        key = key_of(trace, everything, target, torch.get_num_threads())
        found = None if self._files is None else self._files.load(key)
        made: dict[str, Any]
        if found is not None:
            made, library = found
            self.counts.cache_hits += 1
        else:
            made, library = self._made(trace, everything, target)
            if self._files is not None:
                self._files.store(key, made, library)
        self.counts.not_lowered.update(made["not_lowered"])
        if made["regions"]:
            self._install(device, plan, made, library)
            if any(not region["engine"] for region in made["regions"]):
                self._undecided[device, plan] = (key, made, library)
        return made

    def _made(self, trace: str, everything: bool, target: str) -> tuple[dict[str, Any], bytes]:
        path = Path(self._folder.name) / "library.so"
        path.unlink(missing_ok=True)
        begin = time.monotonic()
        try:
            made = self._worker.compile(trace, path, everything, target)
            self.counts.compiles += 1
        finally:
            self.counts.seconds_compiling += time.monotonic() - begin
        return made, path.read_bytes() if path.exists() else b""

    def _install(self, device: int, plan: int, made: dict[str, Any], library: bytes) -> None:
        # A name of its own for each: what is loaded already under a name would be loaded again.
        path = Path(self._folder.name) / f"{next(self._numbers)}.so"
        if library:
            path.write_bytes(library)
        _C.install(device, plan, str(path) if library else "", made["steps"], made["regions"])
        path.unlink(missing_ok=True)

    def _keep_decisions(self) -> None:
        """Write which engine was faster beside the kernels, for the next process."""
        if self._files is None:
            return
        for device in {device for device, _ in self._undecided}:
            for state in _C.plans(device):
                engines = [region["engine"] for region in state["regions"]]
                if all(engines) and (device, state["plan"]) in self._undecided:
                    key, made, library = self._undecided.pop((device, state["plan"]))
                    for region, engine in zip(made["regions"], engines, strict=True):
                        region["engine"] = engine
                    self._files.store(key, made, library)


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
    missing = why_not_compiled()
    if settings.mode == "uop" and missing is not None:
        raise RuntimeError(f"TORCH_TINY_ENGINE=uop: {missing}")
    if settings.mode == "aten" or missing is not None:
        return
    engine = Engine(settings)
    engine.start()
