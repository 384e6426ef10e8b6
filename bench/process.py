"""A fresh process for each measurement, so that none is warmed up or slowed down by another."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def in_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it in a process that has imported torch and, like its parent, not used it yet."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *args, **kwargs).result()
