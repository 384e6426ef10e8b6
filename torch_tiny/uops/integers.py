"""Integers as on the CPU: they wrap around, whatever a kernel language makes of them.

C leaves signed overflow undefined and computes small types as int, WGSL has 32 bits only. Where
there are no 64 bits, what tinygrad's emulation does slowly or wrongly is a call.
"""

from collections.abc import Callable

from torch_tiny.uops import DType, Ops, PatternMatcher, UOp, UPat, constant, dtypes
from torch_tiny.uops.sealed import sealed_pattern

Spelling = Callable[[str, DType], str | None]
"""The text of an operator on {0} and {1} that wraps around; None where the language's own does."""

_SMALL = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
_SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
_OPERATORS = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.SHL: "<<", Ops.CDIV: "/", Ops.NEG: "neg",
    Ops.CAST: "cast",
}  # fmt: skip


def wrapped(sink: UOp, spelling: Spelling) -> UOp:
    """Arithmetic with integers from memory, in the text that wraps around; indices never do."""
    new: dict[UOp, UOp] = {}
    from_memory: set[UOp] = set()
    for u in sink.toposort():
        if u.op is Ops.LOAD or not from_memory.isdisjoint(u.src):
            from_memory.add(u)
        src = tuple(new[s] for s in u.src)
        text = None
        if u.op in _OPERATORS and (u.dtype in _SMALL or (u.dtype in _SIGNED and u in from_memory)):
            text = _spelled(u, spelling)
        if text is None:
            new[u] = u.replace(src=src)
        else:
            typed = (s.cast(u.dtype) if s.dtype in dtypes.weaks else s for s in src)
            new[u] = UOp(Ops.CUSTOM, u.dtype, tuple(typed), text)
    return new[sink]


def around(value: int, dtype: DType) -> int:
    """A number as the type holds it."""
    low, high = int(dtype.min), int(dtype.max)
    return (value - low) % (high - low + 1) + low


def spelled(u: UOp, name: str, spelling: Spelling) -> UOp:
    """The operator that was sealed by that name, as text if there is one.

    Of constants it is one: WGSL has no kernel in which they overflow.
    """
    typed = _operands(u)
    op, value, own = _SEALED[name]
    if all(s.op is Ops.CONST for s in typed):
        return constant(around(value(*(int(s.arg) for s in typed)), u.dtype), u.dtype)
    text = spelling(name if op is None else _OPERATORS[op], u.dtype) or own
    return _plain(u, name, typed) if text is None else UOp(Ops.CUSTOM, u.dtype, typed, text)


# Of what is sealed: the operator, its value, and its text where the language's own wraps around;
# tinygrad would still take it for numbers.
_SEALED: dict[str, tuple[Ops | None, Callable[..., int], str | None]] = {
    "add": (Ops.ADD, lambda a, b: a + b, "({0} + {1})"),
    "sub": (Ops.SUB, lambda a, b: a - b, "({0} - {1})"),
    "mul": (Ops.MUL, lambda a, b: a * b, "({0} * {1})"),
    "shl": (Ops.SHL, lambda a, b: a << b, None),
    "neg": (Ops.NEG, lambda a: -a, "(0 - {0})"),
    "wrap": (None, lambda a: a, "({0})"),
}


def _operands(u: UOp) -> tuple[UOp, ...]:
    """Of an operator that was sealed, each of a type."""
    return tuple(s.cast(u.dtype) if s.dtype in dtypes.weaks else s for s in u.src)


def _plain(u: UOp, name: str, operands: tuple[UOp, ...]) -> UOp:
    op = _SEALED[name][0]
    return operands[0] if op is None else UOp(op, u.dtype, operands)


def _spelled(u: UOp, spelling: Spelling) -> str | None:
    given = u.src[0].dtype
    if u.op is Ops.CAST and (u.src[0].op is Ops.CONST or given not in dtypes.ints):
        return None
    if u.op is Ops.CDIV and u.dtype not in _SMALL:
        return None
    return spelling(_OPERATORS[u.op], u.dtype)


# --- 64 bits as two words: calls of functions that a kind has by these names ---


def _divide(u: UOp) -> UOp:
    """By a function: tinygrad's division is a text of 64 steps, compiled for minutes."""
    words = tuple(word for x in u.src for word in _words(x))
    name = f"tt_{'u' * (u.dtype == dtypes.uint64)}{'div' if u.op is Ops.CDIV else 'mod'}"
    return _pair(f"{name}({{0}}, {{1}}, {{2}}, {{3}})", words, u.dtype)


def _multiply(u: UOp) -> UOp | None:
    """A product of two words, as in Philox: the emulation would take four words and their sums."""
    a, b = (_word(x) for x in u.src)
    if a is None or b is None:
        return None
    return _joined((_call("({0}*{1})", (a, b)), _call("tt_mul_high({0}, {1})", (a, b))), u.dtype)


def _to_float(u: UOp, x: UOp) -> UOp:
    signed = "" if x.dtype == dtypes.int64 else "u"
    words = _words(x)
    return UOp(Ops.CUSTOM, dtypes.float32, words, f"tt_{signed}float({{0}}, {{1}})").cast(u.dtype)


_LONGS = (dtypes.int64, dtypes.uint64)

long_arithmetic = PatternMatcher(
    [
        (UPat((Ops.CDIV, Ops.CMOD), _LONGS, name="u"), _divide),
        (UPat(Ops.MUL, dtypes.uint64, name="u"), _multiply),
        (
            UPat(Ops.CAST, dtypes.int64, (UPat.var("x", dtypes.floats),)),
            lambda x: _pair("tt_long({0})", (x.cast(dtypes.float32),), dtypes.int64),
        ),
        (UPat(Ops.CAST, dtypes.floats, (UPat.var("x", _LONGS),), name="u"), _to_float),
    ]
)


# Their words are unsigned, and wrap around by themselves.
plain_longs = PatternMatcher([(sealed_pattern(_LONGS), lambda u: _plain(u, u.arg, _operands(u)))])


def _words(x: UOp) -> tuple[UOp, UOp]:
    return x.cast(dtypes.uint32), (x >> 32).cast(dtypes.uint32)


def _word(x: UOp) -> UOp | None:
    if x.op is Ops.CONST and 0 <= x.arg < 1 << 32:
        return constant(x.arg, dtypes.uint32)
    return x.src[0] if x.op is Ops.CAST and x.src[0].dtype == dtypes.uint32 else None


def _call(text: str, operands: tuple[UOp, ...]) -> UOp:
    return UOp(Ops.CUSTOM, dtypes.uint32, operands, text)


def _pair(text: str, operands: tuple[UOp, ...], dtype: DType) -> UOp:
    return _joined((_call(f"{text}.x", operands), _call(f"{text}.y", operands)), dtype)


def _joined(words: tuple[UOp, UOp], dtype: DType) -> UOp:
    low, high = (word.cast(dtype) for word in words)
    return low | (high << 32)
