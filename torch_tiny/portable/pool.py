"""Memory that was given back, for the next buffer of its size."""

from typing import Any


class Pool:
    """Keeps at most so many bytes; the size that was not wanted for longest goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: dict[int, list[Any]] = {}

    def take(self, nbytes: int) -> Any | None:
        """Memory of this size, None if there is none."""
        same = self._kept.pop(nbytes, None)
        if same is None:
            return None
        memory = same.pop()
        self._bytes -= nbytes
        if same:
            self._kept[nbytes] = same  # at the end now
        return memory

    def give(self, memory: Any, nbytes: int) -> list[tuple[Any, int]]:
        """Keep it. What has to be freed for that, with the sizes."""
        self._kept[nbytes] = [*self._kept.pop(nbytes, ()), memory]
        self._bytes += nbytes
        return self._shrunk(self._most_bytes)

    def clear(self) -> list[tuple[Any, int]]:
        """All of it, which has to be freed."""
        return self._shrunk(0)

    def _shrunk(self, most_bytes: int) -> list[tuple[Any, int]]:
        gone = []
        while self._kept and self._bytes > most_bytes:
            nbytes, same = next(iter(self._kept.items()))
            gone.append((same.pop(), nbytes))
            self._bytes -= nbytes
            if not same:
                del self._kept[nbytes]
        return gone
