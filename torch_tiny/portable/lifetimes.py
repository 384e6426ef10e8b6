"""Temporaries that are never needed at the same time share a buffer."""

from collections.abc import Sequence


def share(sizes: Sequence[int], steps: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, int]]:
    """The sizes of the buffers to make, and which of them temporary i is in.

    steps: the temporaries that each kernel reads or writes, in the order of the kernels.
    """
    last = {one: number for number, step in enumerate(steps) for one in step}
    ending: dict[int, list[int]] = {}
    for one, number in last.items():
        ending.setdefault(number, []).append(one)
    made: list[int] = []
    home: dict[int, int] = {}
    free: list[int] = []
    for number, step in enumerate(steps):
        for one in step:
            if one not in home:
                home[one] = _fitting(sizes[one], made, free)
        free += (home[one] for one in ending.get(number, ()))
    return made, home


def _fitting(size: int, made: list[int], free: list[int]) -> int:
    """The smallest that is free and large enough; a new one where there is none."""
    found = min((k for k in free if made[k] >= size), key=lambda k: made[k], default=None)
    if found is None:
        made.append(size)
        return len(made) - 1
    free.remove(found)
    return found
