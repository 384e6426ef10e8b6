"""Ctrl-C while a library waits in callbacks of Python: ctypes would swallow it there."""

import functools
import signal
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uninterrupted(function: Callable[P, R]) -> Callable[P, R]:
    """Ctrl-C is raised when the function is done. Only the main thread gets it at all."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        came: list[int] = []
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:  # someone else decides what it means
            return function(*args, **kwargs)
        signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
        try:
            return function(*args, **kwargs)
        finally:
            signal.signal(signal.SIGINT, before)
            if came:
                raise KeyboardInterrupt

    return guarded
