"""Long sums of floats in levels: sums of blocks, sums of those, and so on.

A sum that is one chain of additions loses a digit for every hundredfold of its length. Here no
chain is longer than a block, whatever the number of elements; the last block of a level is shorter.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from torch_tiny.uops import AxisType, Ops, UOp, dtypes, new_numbers, simplified

CHAIN = 16  # additions of one level, as in PyTorch's own sums


def cascaded(sink: UOp, block: Callable[[UOp], int] = lambda _: CHAIN) -> UOp:
    """The kernel with its sums in levels. block(reduce): elements of a block of the first level.

    Reductions over the same loops go on sharing them. Loops of threads are left alone.
    """
    ids = new_numbers(sink)
    ways: dict[tuple[tuple[UOp, ...], int], tuple[Levels, dict[UOp, UOp]]] = {}
    new: dict[UOp, UOp] = {}
    for u in sink.toposort():
        new[u] = u.replace(src=tuple(new[s] for s in u.src)) if u.src else u
        if not is_rounded(u):
            continue
        own = tuple(r for r in u.src[1:] if r.op is Ops.RANGE and r.arg[-1] is AxisType.REDUCE)
        most = block(u)
        if math.prod(map(extent, own)) <= most:
            continue
        if (own, most) not in ways:
            ways[own, most] = levels_of(own, most, ids)
        (*inner, outer), places = ways[own, most]
        value = new[u].src[0].substitute(places)
        for loops in (*inner, (*outer, *(r for r in u.src[1:] if r not in own))):
            value = u.replace(src=(value, *loops))
        new[u] = value
    return new[sink]


def is_rounded(reduce: UOp) -> bool:
    """Whether long chains make it less exact, which products and integers are not."""
    return reduce.op is Ops.REDUCE and reduce.arg[0] is Ops.ADD and reduce.dtype in dtypes.floats


Levels = list[tuple[UOp, ...]]


def levels_of(
    loops: Sequence[UOp], block: int, ids: "itertools.count[int]"
) -> tuple[Levels, dict[UOp, UOp]]:
    """The loops of each level, from the inside out, and the places of the loops that were cut."""
    levels: Levels = []
    places: dict[UOp, UOp] = {}
    here: tuple[UOp, ...] = ()
    room = block
    for loop in sorted(loops, key=lambda r: r.arg, reverse=True):
        if here and extent(loop) > room:
            levels.append(here)
            here, room = (), CHAIN
        if extent(loop) > room:
            (*inner, outer), places[loop] = _parts(loop, room, ids)
            levels += [(part,) for part in inner]
            here, room = (outer,), CHAIN // extent(outer)
        else:
            here, room = (*here, loop), room // extent(loop)
    return [*levels, here], places


def _parts(loop: UOp, block: int, ids: "itertools.count[int]") -> tuple[list[UOp], UOp]:
    """Loops in place of a long one, from the inside out, and where they are together."""
    length = extent(loop)
    sizes = [_even_block(length, block)]
    while (blocks := -(-length // math.prod(sizes))) > CHAIN:
        sizes.append(_even_block(blocks, CHAIN))
    place: UOp = loop.const_like(0)
    parts: list[UOp] = []
    for k in range(len(sizes), -1, -1):
        step = math.prod(sizes[:k])
        count = (length - place + (step - 1)) // step
        if k < len(sizes):
            count = (count < sizes[k]).where(count, count.const_like(sizes[k]))
        parts.insert(0, UOp.range(simplified(count), next(ids), AxisType.REDUCE))
        place = place + parts[0] * step
    return parts, simplified(place)


def _even_block(length: int, most: int) -> int:
    """The size of blocks: without a remainder, if that takes few more of them."""
    even = (n for n in range(most, most // 2, -1) if length % n == 0 and n % 8 == 0)
    return next(even, most)


def extent(loop: UOp) -> int:
    return int(loop.vmax) + 1
