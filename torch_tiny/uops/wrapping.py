"""Integers that may leave their type, sealed: they wrap around in it, as on the CPU.

tinygrad's rules take integers for numbers: they fold comparisons by bounds, move terms from side to
side, widen types and drop conversions. That is right for what cannot overflow, and so it is left to
them where the bounds of the operands say so: positions, counts, places in memory. Whatever else a
program computes with integers becomes an operator that the rules know nothing of.
"""

import math
from collections.abc import Callable

from torch_tiny.uops import DType, GroupOp, Ops, UOp, dtypes
from torch_tiny.uops.constants import factor
from torch_tiny.uops.integers import around
from torch_tiny.uops.sealed import sealed

Bounds = tuple[int, int]


def seal_integers(sink: UOp) -> UOp:
    """The same values, in which no integer operator that is left to tinygrad can overflow."""
    new: dict[UOp, UOp] = {}
    bounds: dict[UOp, Bounds] = {}
    for u in sink.toposort():
        src = tuple(new[s] for s in u.src)
        now = u if src == u.src else u.replace(src=src)
        if u.dtype == dtypes.weakint or u.dtype in dtypes.ints or u.dtype == dtypes.bool:
            found = _bounds(u, bounds)
            low, high = _limits(u.dtype)
            if found is None or found[0] < low or found[1] > high:
                if found is not None and found[0] == found[1] and u.dtype in dtypes.ints:
                    found = (around(found[0], u.dtype),) * 2
                    now = u.const_like(found[0])
                else:
                    found = low, high
                    if u.op in _SEALED and u.dtype in dtypes.ints:
                        now = _SEALED[u.op](u, now, new)
            bounds[u] = found
        new[u] = now
    return new[sink]


def _limits(dtype: DType) -> Bounds:
    if dtype == dtypes.weakint:
        dtype = dtypes.int64
    return (0, 1) if dtype == dtypes.bool else (int(dtype.min), int(dtype.max))


# --- what an operator's result lies between; None: anything ---


def _bounds(u: UOp, known: dict[UOp, Bounds]) -> Bounds | None:
    if u.op is Ops.CONST:
        return (int(u.arg), int(u.arg)) if isinstance(u.arg, int | bool) else None
    if u.op is Ops.CAST and (number := _float(u.src[0])) is not None:
        return _converted(number, u.dtype)
    if u.op in GroupOp.Movement:
        low, high = known[u.src[0]]
        return (min(low, 0), max(high, 0)) if u.op is Ops.PAD else (low, high)
    if u.op is Ops.WHERE:
        lows, highs = zip(*(known.get(s, _limits(u.dtype)) for s in u.src[1:]), strict=True)
        return min(lows), max(highs)
    if u.op is Ops.REDUCE and u.src[0] in known:
        return _reduced(u, known[u.src[0]])
    if u.op not in _OF_OPERANDS or any(s not in known for s in u.src):
        return None
    return _OF_OPERANDS[u.op](*(known[s] for s in u.src))


def _float(u: UOp) -> float | None:
    while u.op in GroupOp.Movement and u.op is not Ops.PAD:
        u = u.src[0]
    return float(u.arg) if u.op is Ops.CONST and u.dtype in dtypes.floats else None


def _converted(number: float, dtype: DType) -> Bounds:
    """What no integer of the type is near becomes the lowest one, as x86 does it."""
    low, high = _limits(dtype)
    value = int(number) if math.isfinite(number) and low <= number <= high else low
    return value, value


def _reduced(u: UOp, one: Bounds) -> Bounds | None:
    count = u.src[0].max_numel() // max(u.max_numel(), 1)
    if u.arg[0] is Ops.ADD:
        return min(one[0] * count, 0), max(one[1] * count, 0)
    if u.arg[0] is Ops.MUL:
        return (-1, 1) if one[0] >= -1 and one[1] <= 1 else None
    return one


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _left(a: Bounds, b: Bounds) -> Bounds | None:
    return _product(a, (1 << b[0], 1 << b[1])) if b[0] >= 0 and b[1] < 64 else None


def _right(a: Bounds, b: Bounds) -> Bounds:
    if b[0] == b[1] and 0 <= b[0] < 64:
        return a[0] >> b[0], a[1] >> b[0]
    return min(a[0], 0), max(a[1], 0)


def _masked(a: Bounds, b: Bounds) -> Bounds | None:
    tops = [high for low, high in (a, b) if low >= 0]
    return (0, min(tops)) if tops else None


def _bits(a: Bounds, b: Bounds) -> Bounds | None:
    if min(a[0], b[0]) < 0:
        return None
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _quotient(a: Bounds, b: Bounds) -> Bounds:
    most = max(abs(a[0]), abs(a[1]))
    return (0, a[1]) if min(a[0], b[0]) >= 0 else (-most, most)


def _rest(a: Bounds, b: Bounds) -> Bounds:
    """Of either kind of division: smaller than the divisor, with the sign of one of the two."""
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    return (0, most) if min(a[0], b[0]) >= 0 else (-most, most)


_OF_OPERANDS: dict[Ops, Callable[..., Bounds | None]] = {
    Ops.ADD: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Ops.SUB: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    Ops.MUL: _product,
    Ops.NEG: lambda a: (-a[1], -a[0]),
    Ops.MAX: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Ops.SHL: _left,
    Ops.SHR: _right,
    Ops.AND: _masked,
    Ops.OR: _bits,
    Ops.XOR: _bits,
    Ops.CDIV: _quotient,
    Ops.FLOORDIV: _quotient,
    Ops.CMOD: _rest,
    Ops.FLOORMOD: lambda a, b: (0, b[1] - 1) if b[0] > 0 else _rest(a, b),
    Ops.CAST: lambda a: a,
    **dict.fromkeys((Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ), lambda *_: (0, 1)),
}


# --- what stands for an operator that may overflow ---

Sealing = Callable[[UOp, UOp, dict[UOp, UOp]], UOp]


def _named(name: str) -> Sealing:
    return lambda u, now, _: sealed(name, u.dtype, now.src)


def _add(u: UOp, now: UOp, new: dict[UOp, UOp]) -> UOp:
    taken = factor(u.src[1], -1.0)
    if taken is None:
        return sealed("add", u.dtype, now.src)
    return sealed("sub", u.dtype, (now.src[0], new[taken]))


def _multiply(u: UOp, now: UOp, new: dict[UOp, UOp]) -> UOp:
    negated = factor(u, -1.0)
    if negated is None:
        return sealed("mul", u.dtype, now.src)
    return sealed("neg", u.dtype, (new[negated],))


def _wrapped(u: UOp, now: UOp, new: dict[UOp, UOp]) -> UOp:  # noqa: ARG001
    """What the rules make of it inside is right up to a multiple of 2 to the bits of its type."""
    return sealed("wrap", u.dtype, (now,))


_SEALED: dict[Ops, Sealing] = {
    Ops.ADD: _add,
    Ops.SUB: _named("sub"),
    Ops.MUL: _multiply,
    Ops.NEG: _named("neg"),
    Ops.SHL: _named("shl"),
    Ops.CAST: _wrapped,
    Ops.REDUCE: _wrapped,
}
