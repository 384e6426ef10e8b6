"""The threads of a soak, from the first to the last: they play, stop to be weighed, and end."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections import Counter

from .health import Held, held
from .player import Difference, Player
from .settings import THREADS
from .shared import bin_of_tensors, roundings

PATIENCE = 300.0
"""Seconds without an end of anything after which a thread hangs."""


class Crew:
    def __init__(self, seed: int) -> None:
        self.players = [Player(seed, i, f"tiny:{THREADS}") for i in range(THREADS)]
        self.weights: list[Held] = []
        self._ends = threading.Event()
        self._pauses = threading.Event()
        self._gate = threading.Barrier(THREADS + 1)
        self._failure: BaseException | None = None

    def work(self, seconds: float, weighings: int) -> None:
        """Play for so long; the first thread is the main one, where signals arrive."""
        others = [threading.Thread(target=self._loop, args=(p,)) for p in self.players[1:]]
        others += [threading.Thread(target=self._sweep, daemon=True)]
        others += [threading.Thread(target=self._direct, args=(seconds, weighings))]
        for thread in others:
            thread.start()
        self._loop(self.players[0])
        for thread in others:
            thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def counts(self) -> Counter[str]:
        return sum((player.counts for player in self.players), Counter())

    @property
    def differences(self) -> list[Difference]:
        return [difference for player in self.players for difference in player.differences]

    def _loop(self, player: Player) -> None:
        try:
            while not self._ends.is_set():
                player.step()
                if self._pauses.is_set():
                    self._gate.wait()  # all have stopped
                    self._gate.wait()  # and were weighed
                    player.seen = time.monotonic()
        except BaseException as error:
            self._failure = error
            self._gate.abort()
            raise
        finally:
            self._ends.set()

    def _direct(self, seconds: float, weighings: int) -> None:
        """Weigh the process now and then, and see to it that every thread gets on."""
        begin = time.monotonic()
        for number in range(1, weighings + 1):
            while time.monotonic() < begin + seconds * number / weighings:
                if self._ends.wait(1.0):
                    return
                if all(time.monotonic() - player.seen < PATIENCE for player in self.players):
                    faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
                else:
                    print("a thread hangs", file=sys.stderr, flush=True)
                    faulthandler.dump_traceback_later(1, exit=True)
                    return
            if number == weighings * 2 // 3:  # from here on everything was seen before
                for player in self.players:
                    player.renews = False
            self._weigh(begin)
        self._ends.set()
        faulthandler.cancel_dump_traceback_later()

    def _weigh(self, begin: float) -> None:
        self._pauses.set()
        try:
            self._gate.wait()
            self.weights.append(held())
            self._pauses.clear()
            self._gate.wait()
        except threading.BrokenBarrierError:
            return
        counts = self.counts | {"differences of rounding": len(roundings)}
        done = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
        spent = time.monotonic() - begin
        print(f"{spent:.0f} s: {self.weights[-1]}; {done}", flush=True)

    def _sweep(self) -> None:
        """Drop what other threads leave, while they go on."""
        while not self._ends.wait(0.001):
            while bin_of_tensors:
                bin_of_tensors.popleft()
