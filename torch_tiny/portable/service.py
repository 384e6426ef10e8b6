"""Serves the core on portable devices: memory, compiling at first sight, running, warnings."""

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torch_tiny import _C, failures
from torch_tiny.engine import service
from torch_tiny.engine.cache import PlanFiles, context_of
from torch_tiny.engine.plan import Code, Made, Plan, Remembered, digest
from torch_tiny.engine.settings import from_environment
from torch_tiny.portable import scaler
from torch_tiny.portable.kind import Kind, Opened, find_kind
from torch_tiny.portable.memory import Memory
from torch_tiny.trace import SCALAR_TYPE_NUMBERS, read_trace

if TYPE_CHECKING:
    from tinygrad.device import Buffer

    from torch_tiny.uops import DType

_PATIENCE = 2.0  # seconds of compiling before the user is told


class FallbackWarning(UserWarning):
    """An operator runs on the host since the device has no kernel for it."""


@dataclass
class _Device:
    kind: Kind
    opened: Opened
    memory: Memory
    programs: dict[int, Any] = field(default_factory=dict)


class Engine:
    """One per process; the core calls its methods, with the GIL and one at a time per device."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._devices: dict[int, _Device] = {}
        self._opened: dict[str, Opened] = {}
        self._opening = threading.Lock()
        self._compiling = threading.Lock()  # tinygrad's settings are the process's
        self._adopting = threading.Lock()
        self._next = 1
        self._ended: set[int] = set()  # programs that are to be dropped
        self.counts = service.Counts()
        settings = from_environment()
        self._files = None if settings.cache is None else PlanFiles(settings.cache)
        self._known = Remembered(self._files)

    # Memory and running, for the core

    def upload(self, device: int, buffer: int, data: memoryview) -> int:
        with self._using(device) as here:
            return here.memory.upload(buffer, data)

    def download(self, device: int, buffer: int, data: memoryview) -> None:
        with self._using(device) as here:
            here.memory.download(buffer, data)

    def run(
        self, device: int, program: int, buffers: list[int], numbers: list[bytes]
    ) -> list[int] | None:
        with self._using(device) as here:
            made: list[int] | None = here.programs[program].run(buffers, numbers)
            return made

    def wait(self, device: int) -> None:
        if device in self._devices:
            with self._using(device) as here:
                here.opened.wait()

    def empty_cache(self, device: int) -> None:
        if device in self._devices:
            with self._using(device) as here:
                here.opened.empty_cache()

    def warn(self, device: int, op: str, where: str) -> None:
        why = self.counts.not_lowered.get(op, "its result depends on data")
        name = self._names[device]
        text = f"{op} runs on the CPU, with copies from and to {name} ({why})"
        file, _, line = where.rpartition(":")
        if line.isdigit():
            warnings.warn_explicit(text, FallbackWarning, file, int(line))
        else:
            warnings.warn_explicit(f"{text}, in {where}", FallbackWarning, "torch_tiny", 1)

    # Sharing with tinygrad

    def lend(self, tensor: torch.Tensor, dtype: "DType") -> "Buffer":
        """A buffer of tinygrad's over the memory of a tensor."""

        def lend(number: int) -> "Buffer":
            with self._using(tensor.device.index) as here:
                return here.memory.lend(number, dtype)

        return _C.share_buffer(tensor, lend)

    def adopt(self, owner: "Buffer", dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor over a buffer of tinygrad's, of the first device with such memory."""
        with self._adopting:
            fitting = [i for i in self._names if self._tinygrad_name(i) == owner.device]
            for device in fitting:
                memory = self._device(device).memory
                number = memory.number_of(owner)
                if number is None:
                    continue
                known = _C.shared_tensor(device, number, dtype)
                if known is not None:
                    return known
                memory.free([number])  # the last tensor over it has died
            number = self._device(fitting[0]).memory.adopt(owner)
            return _C.adopt_shared_buffer(fitting[0], number, owner.nbytes, dtype)

    # Compiling

    def compile(self, device: int, plan: int, trace: str, lines: list[str]) -> str:
        """Why nothing can run there, if so. What cannot be compiled stays a call on the host."""
        try:
            self._device(device)
        except Exception as error:
            return f"tiny:{device} ({self._names[device]}) cannot be used: {error}"
        try:
            with self._compiling, self._using(device) as here:
                self.counts.note_plan(self._compile(here, device, plan, trace), lines)
        except Exception as error:
            self.counts.note_failure(f"{type(error).__name__}: {error}", lines[0])
            for call in read_trace(trace).calls:
                self.counts.not_lowered.setdefault(call.op, self.counts.last_failure)
        return ""

    def _compile(self, here: _Device, device: int, plan: int, trace: str) -> Plan:
        target = f"{self._names[device]} {here.opened.describe()}"
        context = context_of(True, target)
        key = digest(context, trace)
        found = None if self._files is None else self._files.load(key)
        if found is not None:
            # A plan may be of another driver's, whose kernels this one does not build.
            with suppress(Exception):
                self._install(here, device, plan, Made(*found))
                self.counts.cache_hits += 1
                return found[0]
            self._known.forget(found[1])
        made = self._made(here, trace, context)
        if self._files is not None and (
            trouble := self._files.store(key, made.plan) or made.trouble
        ):
            failures.note("cache", trouble, "")
        self._install(here, device, plan, made)
        return made.plan

    def _install(self, here: _Device, device: int, plan: int, made: Made) -> None:
        if not made.plan.regions:
            return
        _build(here, made)
        loaded = [  # until the plan has them
            _C.loaded_code(device, key) or _C.load_code(device, key, vars(code))
            for key, (code, _) in made.built.items()
        ]
        regions = [
            {**vars(region), "portable": self._installed(here, made.built[region.code][0])}
            for region in made.plan.regions
        ]
        _C.install(device, plan, made.plan.steps, regions)
        del loaded

    def _made(self, here: _Device, trace: str, context: str) -> Made:
        from torch_tiny.engine.compile import compile_trace
        from torch_tiny.portable.target import Portable

        begin = time.monotonic()
        late = threading.Timer(_PATIENCE, _tell, [f"compiling for {here.kind.name} ..."])
        late.daemon = True
        late.start()
        try:
            target = Portable(here.kind, here.opened)
            made = compile_trace(trace, True, target, self._known, context)
            _build(here, made)
        except RuntimeError:  # the device's compiler refuses something
            target = Portable(here.kind, here.opened, one_by_one=True)
            made = compile_trace(trace, True, target, self._known, f"{context} one by one")
        finally:
            late.cancel()
            seconds = time.monotonic() - begin
            self.counts.seconds_finished += seconds
        self.counts.compiles += 1
        self.counts.regions += made.fresh
        if seconds > _PATIENCE:
            kernels = sum(len(code.kernels) for code, _ in made.built.values())
            _tell(f"compiled {kernels} kernels for {here.kind.name} in {seconds:.1f} s")
        return made

    def _installed(self, here: _Device, code: Code) -> int:
        from torch_tiny.portable.run import Region

        number, self._next = self._next, self._next + 1
        here.programs[number] = Region(here.kind, here.opened, here.memory, code)
        return number

    @contextmanager
    def _using(self, device: int) -> Iterator[_Device]:
        """A device for this thread alone, once what was dropped is freed."""
        here = self._device(device)
        with here.opened.lock:
            buffers, programs = _C.dropped(device)
            here.memory.free(buffers)
            self._ended.update(programs)
            for number in self._ended & here.programs.keys():
                self._ended.discard(number)
                here.programs.pop(number).drop()
            yield here

    def _device(self, device: int) -> _Device:
        if device not in self._devices:
            with self._opening:
                if device not in self._devices:
                    self._devices[device] = self._open(device)
        return self._devices[device]

    def _tinygrad_name(self, device: int) -> str:
        name, _, index = self._names[device].partition(":")
        return find_kind(name).tinygrad_name(int(index or 0))

    def _open(self, device: int) -> _Device:
        name, _, index = self._names[device].partition(":")
        kind, theirs = find_kind(name), self._tinygrad_name(device)
        if theirs not in self._opened:
            self._opened[theirs] = kind.open(int(index or 0))
        opened = self._opened[theirs]
        memory = Memory(opened, f"tiny:{device} ({self._names[device]})")
        return _Device(kind, opened, memory)


engine: Engine | None = None


def install() -> None:
    """Serve the core, if there is a portable device. Nothing is opened before it is used."""
    global engine
    names = {i: _C.device_host(i) for i in range(_C.device_count()) if _C.is_portable(i)}
    if not names:
        return
    engine = Engine(names)
    _C.set_portable(engine)
    _C.set_compile_portable(engine.compile)
    fallback = os.environ.get("TORCH_TINY_FALLBACK", "warn")
    if fallback not in _CHOICES:
        raise ValueError(f"TORCH_TINY_FALLBACK={fallback!r} is not known; choose from {_CHOICES}")
    _C.refuse_fallbacks(fallback == "error")
    single = set()
    for index, name in names.items():
        kind = find_kind(name.partition(":")[0])
        kind.prepare()
        numbers = [SCALAR_TYPE_NUMBERS[dtype] for dtype in kind.lacks]
        _C.set_missing_types(index, numbers, kind.advice)
        if torch.float64 in kind.lacks:
            single.add(index)
    if single:
        scaler.install(single)


_CHOICES = ("warn", "error")


def _build(here: _Device, made: Made) -> None:
    """All kernels of a plan together, which takes OpenCL less time."""
    from torch_tiny.portable.codegen import built

    codes = (code for code, _ in made.built.values())
    built(here.opened, [kernel for code in codes for kernel in (*code.kernels, *code.guard)])


def _tell(text: str) -> None:
    print(f"torch_tiny: {text}", file=sys.stderr, flush=True)
