"""Processes to measure in, so that no measurement is warmed up or slowed down by another."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Process:
    """A process that has imported torch and, like its parent, not used it yet."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it there and wait; what it leaves in globals is there for the next call."""
        return self._pool.submit(function, *args, **kwargs).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown()


def in_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it in a process of its own."""
    with Process() as process:
        return process.call(function, *args, **kwargs)
