"""What the environment says about compiling."""

import functools
import importlib.util
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MODES = ("auto", "aten", "uop")


@dataclass(frozen=True)
class Settings:
    mode: str
    """auto: compile what is hot, keep what is faster. aten: never. uop: everything, at once."""
    validate: bool
    """Compile at first sight; every region is also run by PyTorch's operators and compared."""
    cache: Path | None
    """Where compiled plans are kept between processes; None: nowhere."""
    workers: int = 1
    """Processes that may compile at a time."""
    cuda_graphs: bool = True
    """Whether a trace that runs often on CUDA memory becomes one CUDA graph."""
    spared: frozenset[str] = frozenset()
    """In mode uop: what may be left to PyTorch's kernels, by operator or by reason."""

    @property
    def folder(self) -> str | None:
        """The cache as the worker is told of it."""
        return None if self.cache is None else str(self.cache)


@functools.cache
def from_environment() -> Settings:
    """TORCH_TINY_ENGINE and its neighbours, as they are when first asked for."""
    mode = os.environ.get("TORCH_TINY_ENGINE", "auto")
    if mode not in MODES:
        raise ValueError(f"TORCH_TINY_ENGINE={mode!r} is not known; choose from {', '.join(MODES)}")
    return Settings(
        mode,
        validate=os.environ.get("TORCH_TINY_VALIDATE", "0") == "1",
        cache=_cache_folder(),
        workers=_workers(),
        cuda_graphs=os.environ.get("TORCH_TINY_CUDA_GRAPHS", "1") != "0",
    )


def why_not_compiled(target: str = "cpu") -> str | None:
    """What is missing for compiling, and how to get it; None if nothing is."""
    if target == "cpu" and shutil.which("gcc") is None:
        return "no gcc was found: install it (Debian: apt install gcc) to have hot code compiled"
    if importlib.util.find_spec("tinygrad") is None:
        return "tinygrad is not installed: pip install tinygrad==0.14.0 to have hot code compiled"
    return None


def _workers() -> int:
    """They take what the program leaves of the processors; but each also takes memory."""
    given = os.environ.get("TORCH_TINY_WORKERS", "")
    if not given:
        return max(1, min(4, _processors() // 4))
    if not given.isdecimal() or int(given) == 0:
        raise ValueError(f"TORCH_TINY_WORKERS={given!r} is not a number of processes")
    return int(given)


def _processors() -> int:
    """That this process may use, by its mask or by its share of a container's."""
    allowed = len(os.sched_getaffinity(0))
    cgroup = Path("/sys/fs/cgroup")
    ways = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # of its versions
    for files in ways:
        with suppress(OSError, ValueError):  # "max 100000" where there is no limit
            text = " ".join((cgroup / file).read_text() for file in files)
            quota, period = map(int, text.split())
            return min(allowed, max(1, quota // period)) if quota > 0 else allowed
    return allowed


def _cache_folder() -> Path | None:
    given = os.environ.get("TORCH_TINY_CACHE")
    if given == "":
        return None
    if given is not None:
        return _absolute(Path(given))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117  (its specification: a relative one is ignored)
        return Path(base) / "torch_tiny"
    try:
        return _absolute(Path.home() / ".cache" / "torch_tiny")
    except RuntimeError:  # a user without a home
        return None


def _absolute(folder: Path) -> Path | None:
    """Where it is now: the program may change its current folder, or have lost it."""
    try:
        return folder.absolute()
    except FileNotFoundError:
        return None
