"""What a process holds: memory, file descriptors, threads, processes, files."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_tiny.engine import service

from .settings import MARK
from .shared import bin_of_tensors


@dataclass(frozen=True)
class Held:
    """What the process holds at a moment when nothing runs."""

    resident: int
    """Of its own: pages of files, such as libraries, come and go as the system likes."""
    device: int
    """Bytes of tensors on tiny devices."""
    files: int
    compiling: int
    """Open files of the compile that is under way, if one is: its lock, or a plan or library."""
    threads: int
    libraries: int
    """Mapped shared objects."""
    worker: int
    """Bytes of the process that compiles."""
    compiled: int
    """Plans so far."""

    def __str__(self) -> str:
        return (
            f"{self.resident >> 20} MiB, {self.device} bytes on devices, {self.files} files "
            f"and {self.compiling} of a compile, {self.threads} threads, "
            f"{self.libraries} libraries, worker {self.worker >> 20} MiB, "
            f"{self.compiled} plans compiled"
        )


def held() -> Held:
    bin_of_tensors.clear()
    gc.collect()
    assert service.engine is not None
    for index in range(torch.tiny.device_count()):
        torch.tiny.synchronize(index)
    torch.tiny.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)  # what is free, but kept, is nobody's
    on_devices = sum(
        torch.tiny.memory_stats(index)["allocated_bytes.all.current"]
        for index in range(torch.tiny.device_count())
    )
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = list(_open_files())
    compiling = sum(map(_is_of_a_compile, files))
    return Held(
        resident=_anonymous_bytes("self"),
        device=on_devices,
        files=len(files) - compiling,
        compiling=compiling,
        threads=threading.active_count(),
        libraries=len({line.split(maxsplit=5)[5] for line in maps if ".so" in line}),
        worker=_bytes_of_worker(),
        compiled=service.engine.counts.compiles,
    )


def processes(mark: str) -> list[str]:
    """The command lines of processes that were started with this mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{folder.name} {command}")
        except OSError:  # ended, or another's
            continue
    return found


def _bytes_of_worker() -> int:
    assert service.engine is not None
    with suppress(OSError, LookupError):  # replaced meanwhile
        return sum(map(_anonymous_bytes, service.engine.workers.pids))
    return 0


def _anonymous_bytes(process: int | str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise LookupError("this system does not tell what memory is a process's own")


def _open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            yield str(link.readlink())


def _is_of_a_compile(file: str) -> bool:
    """Of the engine's thread, which goes on while the program is weighed."""
    return file.startswith((os.environ["TORCH_TINY_CACHE"], "/memfd:torch_tiny", "/proc"))
