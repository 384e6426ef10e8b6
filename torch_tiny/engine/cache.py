"""Compiled plans on disk: one file each, safe to share, to delete and to find damaged.

A file is a line with the digest of the rest, a line of JSON, and the bytes of a shared object.
Nothing in it is used unless the file and its folder are ours alone to write and the digest fits.
"""

import hashlib
import json
import os
import platform
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30
_SUFFIX = ".plan"


class PlanFiles:
    """A folder of compiled plans. Every failure of the disk reads as "not there"."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def load(self, key: str) -> tuple[Any, bytes] | None:
        """The plan and the shared object stored under a key, if there is one and it is sound."""
        path = self._path(key)
        try:
            if not (_is_ours(self._folder) and _is_ours(path)):
                return None
            digest, _, rest = path.read_bytes().partition(b"\n")
            if hashlib.sha256(rest).hexdigest().encode() != digest:
                path.unlink()
                return None
            plan, _, library = rest.partition(b"\n")
            os.utime(path)  # what was used last is dropped last
            return json.loads(plan), library
        except (OSError, ValueError):
            return None

    def store(self, key: str, plan: Any, library: bytes) -> bool:
        """Keep a plan; readers see all of it or nothing. False if the disk would not take it."""
        rest = json.dumps(plan).encode() + b"\n" + library
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                try:
                    file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
                    file.close()
                    Path(file.name).replace(self._path(key))
                except OSError:
                    Path(file.name).unlink()
                    raise
            self._drop_oldest()
        except OSError:
            return False
        return True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _drop_oldest(self) -> None:
        files = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
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


def key_of(trace: str, everything: bool, target: str, threads: int) -> str:
    """Names what a plan depends on: the trace, our code, the versions and the processor.

    What is faster depends on the number of threads as well.
    """
    parts = (trace, str(everything), target, str(threads), _code_version(), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _code_version() -> str:
    """A digest of the compiler itself: a plan made by other code may be wrong or slow."""
    import torch

    root = Path(__file__).parent.parent
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return f"{platform.machine()} {line}"
    return platform.machine()


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not status.st_mode & others
