"""The `uop` engine: takes hot traces from the core, has them compiled, and installs the plans."""

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torch_tiny import _C, failures
from torch_tiny.engine.cache import PlanFiles, context_of
from torch_tiny.engine.loadable import as_file
from torch_tiny.engine.plan import Code, Made, Plan, digest
from torch_tiny.engine.settings import Settings, from_environment, why_not_compiled
from torch_tiny.engine.worker import SECONDS, Job, Share, Worker, Workers

_POLL = 0.5  # seconds between looks at what was decided
_MOST_KEPT = 8192
_MOST_HOT = 64  # traces that may be refined
_LOOK = 2.0  # seconds between looks for them
_LEAST_SHARE, _LEAST_SECONDS = 0.1, 0.2  # of a step, and in all, of a region that is refined
_NEVER_TIMED = 1e29


@dataclass
class Counts:
    """What compiling has cost and given, for reports."""

    compiles: int = 0
    """Traces that the worker has compiled."""
    regions: int = 0
    """Regions that it had to compile for them; the others were known."""
    cache_hits: int = 0
    failures: int = 0
    """Traces that could not be compiled, and calls that a fault keeps out of compiled code."""
    seconds_finished: float = 0.0
    begun: dict[int, float] = field(default_factory=dict)
    """By thread: when the compile that is under way was begun."""
    waiting: int = 0
    not_lowered: dict[str, str] = field(default_factory=dict)
    last_failure: str = ""

    def note_failure(self, reason: str, where: str) -> None:
        """Count it here, and have the user told."""
        self.failures += 1
        self.last_failure = reason
        failures.note("compile", reason, where)

    def note_plan(self, plan: Plan, lines: list[str]) -> None:
        """What of a compiled trace stays calls, and why. `lines` are the user's, of each call."""
        self.not_lowered.update(plan.not_lowered)
        for call, reason in plan.failed:
            self.note_failure(reason, lines[call])

    @property
    def seconds_compiling(self) -> float:
        """With what those under way have taken so far."""
        begun = list(self.begun.values())
        return self.seconds_finished + sum(time.monotonic() - one for one in begun)


class Engine:
    """One per process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self._files = None if settings.cache is None else PlanFiles(settings.cache)
        self.workers = self._new_workers()
        self._kept: dict[tuple[int, str], tuple[bool, dict[str, str]]] = {}
        """Of regions of devices, by their keys: whether their code is refined, and the engines that
        the disk knows to be faster, by numbers of threads."""
        self._hot: dict[tuple[int, int], tuple[str, list[str], Plan]] = {}
        self._decisions = 0
        """That were made when it was looked for them last."""
        self._looks_at = 0.0
        self._refined: set[str] = set()
        self._lock = threading.Lock()  # around what several threads keep
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to serve the core; nothing is started before there is something to compile."""
        _C.set_validate(self.settings.validate)
        _C.set_cuda_graphs(self.settings.cuda_graphs)
        if self._compiles_at_once:
            _C.set_compile_now(self._compile_now)
            _C.set_mode("uop")
        else:
            _C.set_mode("auto")
            self._start_threads()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._restart)

    @property
    def _compiles_at_once(self) -> bool:
        return self.settings.mode == "uop" or self.settings.validate

    def _new_workers(self) -> Workers:
        share: Share = "equal" if self._compiles_at_once else "idle"
        return Workers(Worker(share=share) for _ in range(self.settings.workers))

    def _start_threads(self) -> None:
        """One for each worker; the first also does what there is to do besides compiling."""
        self._threads = [
            threading.Thread(target=self._serve, args=(i == 0,), name="torch_tiny", daemon=True)
            for i in range(self.settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def _restart(self) -> None:
        """In a forked child: threads stay behind, the worker is the parent's."""
        self.workers.leave()
        self.workers = self._new_workers()
        self._lock = threading.Lock()
        self._kept.clear()
        self._hot.clear()
        self._ends = threading.Event()  # the parent's may have been locked
        self.counts.begun, self.counts.waiting = {}, 0
        _C.reset_jobs()
        if self._threads:
            self._start_threads()

    def _serve(self, is_first: bool) -> None:
        while not self._ends.is_set():
            try:
                self._serve_once(is_first)
            except Exception as error:  # nobody else would take the next job
                failures.note("compile", f"{type(error).__name__}: {error}", "")
                self._ends.wait(_POLL)

    def _serve_once(self, is_first: bool) -> None:
        job = _C.next_job(_POLL)
        if job is None:
            if is_first:
                self._keep_decisions()
                self._refine()
            return
        with self._counted():
            made = self._try_to_compile(*job, everything=False)
            if not isinstance(made, str):
                self._remember(*job, made)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """As a job that is waited for."""
        with self._lock:
            self.counts.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self.counts.waiting -= 1

    def stop(self) -> None:
        """End the workers and their threads, and keep what was decided."""
        self._ends.set()
        self.workers.stop()
        _C.wake()
        for thread in self._threads:
            thread.join(2 * _POLL)
        self._keep_decisions()

    def _compile_now(self, device: int, plan: int, trace: str, lines: list[str]) -> str:
        """At first sight: compile, or say why not where everything has to be compiled."""
        everything = self.settings.mode == "uop"
        made = self._try_to_compile(device, plan, trace, lines, everything)
        if not everything:
            return ""
        if isinstance(made, str):
            return f"TORCH_TINY_ENGINE=uop: compiling failed: {made}"
        if made.failed:
            return f"TORCH_TINY_ENGINE=uop: compiling failed: {made.failed[0][1]}"
        refused = "; ".join(
            f"{op} ({why})"
            for op, why in sorted(made.not_lowered.items())
            if not self.settings.spared & {op, why.rpartition(": ")[2]}
        )
        return f"TORCH_TINY_ENGINE=uop: there is no lowering for {refused}" if refused else ""

    def _try_to_compile(
        self, device: int, plan: int, trace: str, lines: list[str], everything: bool
    ) -> Plan | str:
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

    def _compile(self, device: int, plan: int, trace: str, everything: bool, target: str) -> Plan:
        context = context_of(everything, target)
        job = Job(trace, everything, target, self.settings.folder, context)
        if self._files is None:
            made = self._made(job)
            self._install(device, plan, made)
            self.counts.compiles += 1
            return made.plan
        key = digest(context, trace)
        with self._files.alone(key, self._ends, SECONDS):
            found = self._files.load(key)
            if found is not None and self._fits(device, plan, Made(*found)):
                self.counts.cache_hits += 1
                return found[0]
            made = self._made(replace(job, anew=() if found is None else tuple(found[1])))
            if not self._fits(device, plan, made):  # some of it was on disk
                made = self._made(replace(job, anew=tuple(made.built)))
                self._install(device, plan, made)
            self.counts.compiles += 1
            if trouble := self._files.store(key, made.plan) or made.trouble:
                failures.note("cache", trouble, "")
            return made.plan

    def _fits(self, device: int, plan: int, made: Made) -> bool:
        """Whether it could be installed; another system may have left code on disk."""
        try:
            self._install(device, plan, made)
        except RuntimeError:
            return False
        return True

    def _made(self, job: Job) -> Made:
        thread = threading.get_ident()
        self.counts.begun[thread] = time.monotonic()
        try:
            made = self.workers.compile(job)
            self.counts.regions += made.fresh
        finally:
            with self._lock:
                self.counts.seconds_finished += time.monotonic() - self.counts.begun.pop(thread)
        return made

    def _install(self, device: int, plan: int, made: Made) -> None:
        if not made.plan.regions:
            return
        loaded = []  # until the plan has it
        with self._lock:  # what several plans share is loaded once
            for key, (code, library) in made.built.items():
                known = _C.loaded_code(device, key)
                if known is None:
                    with as_file(library) as path:
                        known = _C.load_code(device, key, {**vars(code), "library": path})
                    self._kept[device, key] = code.is_refined, code.engines
                    if code.is_refined:
                        self._refined.add(key)
                loaded.append(known)
            _C.install(
                device, plan, made.plan.steps, [vars(region) for region in made.plan.regions]
            )
            for one in list(self._kept)[:-_MOST_KEPT]:
                del self._kept[one]

    def _keep_decisions(self) -> None:
        """Write which engine was faster beside the kernels, for the next process."""
        decisions = _C.decisions()
        if self._files is None or decisions == self._decisions:
            return
        self._decisions = decisions
        with self._lock:  # threads that compile go on adding to it
            kept = dict(self._kept)
        for device in {device for device, _ in kept}:
            for region in (one for plan in _C.plans(device) for one in plan["regions"]):
                is_refined, on_disk = kept.get((device, region["code"]), (False, None))
                if on_disk is None or region["engines"].items() <= on_disk.items():
                    continue
                on_disk.update(region["engines"])
                if trouble := self._files.decide(region["code"], on_disk, is_refined):
                    failures.note("cache", trouble, "")

    def _remember(self, device: int, plan: int, trace: str, lines: list[str], made: Plan) -> None:
        """What may be refined later; of too many the oldest goes."""
        if not made.regions or _target(device) != "cpu":  # elsewhere there is one way
            return
        with self._lock:
            if len(self._hot) >= _MOST_HOT:
                del self._hot[next(iter(self._hot))]
            self._hot[device, plan] = trace, lines, made

    def _refine(self) -> None:
        """Have regions that matter written in other ways, too, when there is nothing else to do.

        One plan's at a time: the next job may be there meanwhile.
        """
        now = time.monotonic()
        if not self._hot or now < self._looks_at or self.counts.waiting:
            return
        self._looks_at = now + _LOOK
        for device in {device for device, _ in list(self._hot)}:
            for plan in _C.plans(device):
                keys = [key for key in _that_matter(plan) if key not in self._refined]
                known = self._hot.get((device, plan["plan"]))
                if keys and known is not None:
                    self._looks_at = now
                    self._refined.update(keys)
                    with self._counted():
                        self._write_in_other_ways(keys, *known)
                    return

    def _write_in_other_ways(
        self, keys: list[str], trace: str, lines: list[str], made: Plan
    ) -> None:
        failed = [list(one) for one in made.failed]  # and was told
        context = context_of(False, "cpu")
        job = Job(trace, False, "cpu", self.settings.folder, context, tuple(keys))
        try:
            again = self._made(job)
            for call, reason in again.plan.failed:
                if [call, reason] not in failed:
                    self.counts.note_failure(reason, lines[call])
            for key in keys:
                self._replace(key, *again.built[key])
        except Exception as error:  # what there is goes on
            if not self._ends.is_set():
                self.counts.note_failure(f"{type(error).__name__}: {error}", lines[0])

    def _replace(self, key: str, code: Code, library: bytes) -> None:
        """On every device that has it, if it is another than the first."""
        with self._lock:
            for device in range(_C.device_count()):
                before = _C.loaded_code(device, key)  # held, lest it should go meanwhile
                if before is None:
                    continue
                if code.chosen:
                    with as_file(library) as path:
                        _C.replace_code(device, key, {**vars(code), "library": path})
                self._kept[device, key] = True, code.engines


def _that_matter(plan: dict[str, Any]) -> list[str]:
    """Keys of the decided regions in which a plan spends much of a long time."""
    step = plan["seconds"] / max(plan["runs"], 1)
    spent: dict[str, float] = {}
    for region in plan["regions"]:
        if region["engine"] == "":
            return []
        known = min(region["seconds_aten"], region["seconds_uop"])
        # One that was chosen in another process has not been timed in this.
        seconds = known if known < _NEVER_TIMED else step / len(plan["regions"])
        spent[region["code"]] = spent.get(region["code"], 0.0) + seconds
    return [
        key
        for key, seconds in spent.items()
        if seconds > _LEAST_SHARE * step and seconds * plan["runs"] > _LEAST_SECONDS
    ]


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
