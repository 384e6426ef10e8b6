"""Interrupts: a KeyboardInterrupt in the midst of what a thread does, as Ctrl-C gives one."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable

_ON_ITS_WAY = 1.0  # seconds that an interrupt may take; one that falls into a destructor is lost


def interrupted(after: float, body: Callable[[], None]) -> bool:
    """Run `body`, and interrupt it after so many seconds; whether it was still at work."""
    thread, lock, sent, over = threading.current_thread(), threading.Lock(), False, False

    def send() -> None:
        nonlocal sent
        with lock:
            if not over:
                sent = True
                _interrupt(thread)

    failure: Exception | None = None
    timer = threading.Timer(after, send)
    try:
        try:
            timer.start()
            body()
        except Exception as error:
            failure = error
        with lock:
            over = True
        until = time.monotonic() + _ON_ITS_WAY
        while sent and time.monotonic() < until:
            time.sleep(0.001)
    except KeyboardInterrupt:
        return True
    timer.cancel()
    if failure is not None:
        raise failure
    return False


def _interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    handler = signal.getsignal(signal.SIGINT)  # ignored where a shell started this behind its back
    if thread is threading.main_thread() and handler is signal.default_int_handler:
        signal.pthread_kill(thread.ident, signal.SIGINT)
    else:
        raised = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), raised)
