"""Processes to measure in, so that no measurement is warmed up or slowed down by another."""

import atexit
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from traceback import format_exc
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CallError(Exception):
    """What was called in a process raised, or took the process with it."""

    def __init__(self, why: str, details: str = "") -> None:
        super().__init__(why, details)
        self.why = why
        self.details = details


class Process:
    """A process that has imported torch and, like its parent, not used it yet."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it there and wait; what it leaves in globals is there for the next call."""
        try:
            return self._pool.submit(partial(_call, function, *args, **kwargs)).result()
        except BrokenProcessPool as error:
            raise CallError("the process died") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A forked process ends without them; tiny's ends the compiling process.
        with suppress(CallError):
            self.call(atexit._run_exitfuncs)
        self._pool.shutdown()


def in_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it in a process of its own."""
    with Process() as process:
        return process.call(function, *args, **kwargs)


def _call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    except Exception as error:  # of any class, also of one that cannot be pickled
        raise CallError(f"{type(error).__name__}: {error}", format_exc()) from None
