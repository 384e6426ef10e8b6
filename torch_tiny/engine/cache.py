"""Plans and the code of regions on disk: a file each, safe to share, to delete and to find damaged.

A file is a line with the digest of the rest, a line of JSON, and the bytes of a shared object.
Nothing in it is used unless the file and its folder are ours alone to write and the digest fits; it
is the open file that is looked at, so that nobody can put another in its place meanwhile.
"""

import fcntl
import hashlib
import itertools
import json
import os
import platform
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from torch_tiny.engine import cuda_compile
from torch_tiny.engine.plan import Built, Code, Plan, digest

MOST_BYTES = 1 << 30
_PLAN, _REGION, _UNFINISHED = ".plan", ".region", ".part"
_STORES_BETWEEN_LOOKS = 16  # at all that there is, whether it has become too much
_LOOK = 0.05  # seconds between looks whether another process has compiled a plan


class PlanFiles:
    """A folder of plans and of compiled regions. What cannot be read is "not there"."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._stores = 0

    def load(self, key: str) -> tuple[Plan, dict[str, Built]] | None:
        """The plan stored under a key with the code of all its regions, if all is there."""
        found = self._loaded(f"{key}{_PLAN}")
        if found is None:
            return None
        with suppress(TypeError, KeyError):
            plan = Plan.from_json(found[0])
            built = {code: self.load_code(code) for code in {one.code for one in plan.regions}}
            whole = {code: one for code, one in built.items() if one is not None}
            return (plan, whole) if len(whole) == len(built) else None
        return None

    def store(self, key: str, plan: Plan) -> str:
        """Keep a plan; readers see all of it or nothing. Why the disk would not take it, or ""."""
        trouble = self._stored(f"{key}{_PLAN}", plan.as_json(), b"")
        if self._stores % _STORES_BETWEEN_LOOKS == 0:
            with suppress(OSError):
                self._drop_oldest()
                self._drop_locks()
        self._stores += 1
        return trouble

    def load_code(self, key: str) -> Built | None:
        """A compiled region."""
        found = self._loaded(f"{key}{_REGION}")
        with suppress(TypeError):
            return None if found is None else (Code(**found[0]), found[1])
        return None

    def store_code(self, key: str, code: Code, library: bytes) -> str:
        """Keep a region. What `store` says."""
        return self._stored(f"{key}{_REGION}", vars(code), library)

    def drop_code(self, key: str) -> None:
        with suppress(OSError), self._opened() as folder:
            os.unlink(f"{key}{_REGION}", dir_fd=folder)

    def decide(self, key: str, engines: Mapping[str, str], is_refined: bool) -> str:
        """Note which engine was faster for a region, by numbers of threads. What `store` says."""
        found = self.load_code(key)
        if found is None or found[0].is_refined != is_refined:
            return ""  # another process has dropped it, or written it in a better way
        code, library = found
        if engines.items() <= code.engines.items():
            return ""
        code.engines.update(engines)
        return self.store_code(key, code, library)

    def _loaded(self, name: str) -> tuple[Any, bytes] | None:
        try:
            with self._opened() as folder:
                content = _read(folder, name)
                if content is None:
                    return None
                said, _, rest = content.partition(b"\n")
                if hashlib.sha256(rest).hexdigest().encode() != said:
                    os.unlink(name, dir_fd=folder)
                    return None
                with suppress(OSError):  # of a disk that is only read
                    os.utime(name, dir_fd=folder)  # what was used last goes last
            head, _, library = rest.partition(b"\n")
            return json.loads(head), library
        except (OSError, ValueError):
            return None

    def _stored(self, name: str, head: Any, library: bytes) -> str:
        rest = json.dumps(head).encode() + b"\n" + library
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened():
                pass
            with tempfile.NamedTemporaryFile(
                dir=self._folder, suffix=_UNFINISHED, delete=False
            ) as file:
                try:
                    file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
                    file.close()
                    Path(file.name).replace(self._folder / name)
                except OSError:
                    Path(file.name).unlink()
                    raise
        except OSError as error:
            return f"{self._folder}: {error.strerror or error}"
        return ""

    @contextmanager
    def alone(self, key: str, ends: threading.Event, patience: float) -> Iterator[None]:
        """While no other process compiles the same; it waits for `patience` seconds at most."""
        file = None
        deadline = time.monotonic() + patience
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            while file is None and time.monotonic() < deadline and not ends.is_set():
                with self._opened() as folder:
                    file = _locked(folder, f"{key}.lock")
                if file is None:
                    ends.wait(_LOOK)
        try:
            yield
        finally:
            if file is not None:
                with suppress(OSError):
                    (self._folder / f"{key}.lock").unlink()
                os.close(file)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, if it is ours; OSError if not."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not _is_ours(os.fstat(folder)):
                raise PermissionError(0, "others can write there")
            yield folder
        finally:
            os.close(folder)

    def _drop_oldest(self) -> None:
        files = []
        kept = (self._folder.glob(f"*{suffix}") for suffix in (_PLAN, _REGION, _UNFINISHED))
        for path in itertools.chain.from_iterable(kept):
            with suppress(OSError):  # another process was faster
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= size

    def _drop_locks(self) -> None:
        """Of processes that were killed."""
        for path in self._folder.glob("*.lock"):
            with suppress(OSError), self._opened() as folder:
                if (file := _locked(folder, path.name)) is not None:
                    path.unlink()
                    os.close(file)


def context_of(everything: bool, target: str) -> str:
    """What code depends on besides what it computes: our own, versions, and the processor."""
    made_by = cuda_compile.version() if target.startswith("sm_") else _gcc_version()
    return digest(str(everything), target, _code_version(), made_by, _processor())


@cache
def _code_version() -> str:
    """A digest of the compiler itself: a plan made by other code may be wrong or slow."""
    import torch

    root = Path(__file__).parent.parent
    found = hashlib.sha256(torch.__version__.encode())
    with suppress(metadata.PackageNotFoundError):
        found.update(metadata.version("tinygrad").encode())
    for path in sorted(root.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _gcc_version() -> str:
    """Of every gcc in the PATH, which may call the next, by its file: to run one could take long.

    And of the C library, whose functions are called.
    """
    found = list(platform.libc_ver())
    for folder in os.get_exec_path():
        with suppress(OSError):
            path = (Path(folder) / "gcc").resolve(strict=True)
            status = path.stat()
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return " ".join(found)


@cache
def _processor() -> str:
    """What -march=native looks at; "flags" on x86, "Features" on ARM."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return platform.machine()


def _read(folder: int, name: str) -> bytes | None:
    """All of a file in an open folder, if it is a plain one of ours."""
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(name, how, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        return file.read() if stat.S_ISREG(status.st_mode) and _is_ours(status) else None


def _locked(folder: int, name: str) -> int | None:
    """An open file that is locked; None if another process has it."""
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with suppress(BlockingIOError, FileNotFoundError):  # whoever has it, or has just unlinked it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.stat(name, dir_fd=folder)):
            return file
    os.close(file)
    return None


def _is_ours(status: os.stat_result) -> bool:
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not status.st_mode & others
