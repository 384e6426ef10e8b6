"""Reductions as kernels of their own: long ones in pieces, for threads to share, and repeated."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_tiny.engine.codegen_nest import Nest, place_of, stored_first
from torch_tiny.uops import AxisType, DType, Ops, UOp, simplified
from torch_tiny.uops.cascade import extent

LONG_REDUCTION = 4096  # is cut in pieces where there is little else to divide among threads
MANY_PIECES = 64
LEAST_PIECES = 4
ALIGNED = 64  # a piece has a multiple of so many elements, for vectors and groups of threads
SHORT_PIECE = 1024  # of what remains


def most_pieces(nest: Nest, length: int) -> int:
    """How many pieces of a reduction of that length keep the cores of a CPU busy."""
    if length < LONG_REDUCTION or not (nest.sums_columns or nest.size < MANY_PIECES):
        return 1
    return min(MANY_PIECES, 16 * length // LONG_REDUCTION)


def cut_reductions(
    nest: Nest,
    new_buffer: Callable[[DType, int], UOp],
    most: Callable[[Nest, int], int] = most_pieces,
) -> list[Nest]:
    """Long reductions that few threads could share become ones of pieces, then one of the results.

    most(nest, length): into about how many pieces to cut it.
    """
    if not all(_stands_alone(reduce, nest) for reduce in nest.reduces):
        return [nest]
    cut: list[Nest] = []
    totals: dict[UOp, UOp] = {}
    place = place_of(nest.loops)
    for reduce in nest.reduces:
        wanted = most(nest, math.prod(map(extent, reduce.src[1:])))
        pieces = list(_pieces(reduce, wanted)) if wanted >= LEAST_PIECES else []
        count = sum(piece.count for piece in pieces)
        if count < LEAST_PIECES:
            continue
        buffer = new_buffer(reduce.dtype, count * nest.size)
        for piece in pieces:
            loops = (UOp.range(piece.count, -1, AxisType.WEAK),) if piece.count > 1 else ()
            number = loops[0] if loops else place.const_like(0)
            index = simplified((number + piece.first) * nest.size + place)
            value = simplified(piece.value(number))
            cut.append(Nest((*loops, *nest.loops), buffer, index, value))  # pieces outermost
        unused = 1 + len(totals) + max(r.arg[0] for r in (*nest.loops, *reduce.src[1:]))
        again = UOp.range(count, unused, AxisType.REDUCE)
        results = buffer.index(simplified(again * nest.size + place))
        totals[reduce] = reduce.replace(src=(results, again))
    return [*cut, Nest(nest.loops, nest.target, nest.index, nest.value.substitute(totals))]


def without_repetition(nest: Nest, new_buffer: Callable[[DType, int], UOp]) -> Iterator[Nest]:
    """Reductions that do not depend on all loops get a kernel of their own.

    Loops have an outside where to compute them first, blocks have not.
    """
    for _ in nest.reduces:
        for reduce in nest.reduces:
            loops = tuple(r for r in nest.loops if r in reduce.ranges)
            size = math.prod(map(extent, loops))
            if len(loops) == len(reduce.ranges) and size < nest.size:
                break
        else:
            break
        first, nest = stored_first(nest, reduce, loops, new_buffer)
        yield first
    yield nest


def _stands_alone(reduce: UOp, nest: Nest) -> bool:
    """Whether it depends on the loops of the nest only, and on no other reduction."""
    is_nested = reduce.src[0].op_in_backward_slice_with_self(Ops.REDUCE)
    return not is_nested and all(r in nest.loops for r in reduce.ranges)


@dataclass(frozen=True)
class _Pieces:
    """`count` pieces of one length: those from number `first` on, which begin at `start`."""

    reduce: UOp
    cut: UOp  # the loop that is cut
    length: int
    count: int
    first: int
    start: int

    def value(self, number: UOp) -> UOp:
        """What piece `number`, counted from `first`, gives."""
        others = tuple(r for r in self.reduce.src[1:] if r is not self.cut)
        inside = self.cut.replace(src=(self.cut.src[0].const_like(self.length),))
        place = number * self.length + self.start
        if self.length > 1:
            others, place = (inside, *others), place + inside
        part = self.reduce.src[0].substitute({self.cut: place})
        return self.reduce.replace(src=(part, *others)) if others else part


def _pieces(reduce: UOp, most: int) -> Iterator[_Pieces]:
    """Pieces of one length if about as many fit; else also shorter ones of what remains."""
    loops = sorted(reduce.src[1:], key=lambda r: r.arg)
    cut = next((r for r in loops if extent(r) >= most), max(loops, key=extent))
    start = first = 0
    while (left := extent(cut) - start) > 0:
        length = _length(left, left // SHORT_PIECE if start else most)
        yield _Pieces(reduce, cut, length, left // length, first, start)
        first += left // length
        start += left // length * length


def _length(total: int, most: int) -> int:
    """Of pieces, about `most` of them."""
    most = min(max(most, 1), total)
    even = next(n for n in range(most, 0, -1) if total % n == 0)
    if 2 * even > most:
        return total // even
    length = total // most
    return length // ALIGNED * ALIGNED or length
