"""Renders the linear UOps of one kernel as a C function of plain loops for gcc to vectorize."""

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from torch_tiny.engine import c_math
from torch_tiny.engine.codegen_gates import PLACE
from torch_tiny.uops import (
    AddrSpace,
    AxisType,
    DType,
    Ops,
    Renderer,
    UOp,
    called_name,
    dtypes,
    step,
)
from torch_tiny.uops.integers import around

_C_NAMES = {
    dtypes.bool: "_Bool",
    **{t: f"{'u' * (t in dtypes.uints)}int{8 * t.itemsize}_t" for t in dtypes.ints},
    **dict.fromkeys((dtypes.float16, dtypes.bfloat16), "uint16_t"),
    dtypes.float32: "float",
    dtypes.float64: "double",
}

_SIGNS = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.CDIV: "/", Ops.CMOD: "%",
    Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SHL: "<<", Ops.SHR: ">>",
    Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "==",
}  # fmt: skip
_FORMS = {
    **{op: f"{{}} {sign} {{}}" for op, sign in _SIGNS.items()},
    Ops.WHERE: "{} ? {} : {}",
    Ops.NEG: "-{}",
    Ops.MAX: "{0} < {1} ? {1} : {0}",
}
_FUNCTIONS = (Ops.SQRT, Ops.TRUNC, Ops.EXP2, Ops.LOG2, Ops.SIN)
# Signed overflow is undefined in C and wraps in PyTorch: these go through an unsigned type {u}, one
# that C does not compute with as int.
_WRAPPING_TEXTS = {
    "add": "(({t})(({u}){0} + ({u}){1}))",
    "sub": "(({t})(({u}){0} - ({u}){1}))",
    "mul": "(({t})(({u}){0} * ({u}){1}))",
    "shl": "(({t})(({u}){0} << {1}))",
    "neg": "(({t})-({u}){0})",
    "wrap": "(({t}){0})",
    PLACE: "((int64_t){0})",
}
_WRAPPING = {Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.SHL: "shl", Ops.NEG: "neg"}

_HALF_BITS: dict[DType, Callable[[float], int]] = {
    dtypes.bfloat16: lambda x: int(struct.unpack("<H", struct.pack("<f", x)[2:])[0]),
    dtypes.float16: lambda x: int(np.float16(x).view(np.uint16)),
}

_REDUCTIONS = {Ops.ADD: "+", Ops.MUL: "*", Ops.OR: "|", Ops.AND: "&"}

SCALAR_MARK = '__asm__ volatile("");'
"""Begins the body of a loop that gcc must leave as it is."""
_MOST_UNROLLED = 16  # turns of a loop that gcc unrolls before it looks for vectors


class Target(Renderer):
    """What tinygrad's lowering has to know about our C: which operators exist."""

    code_for_op: dict[Ops, Callable[..., str]] = dict.fromkeys(
        (*_SIGNS, *_FUNCTIONS, Ops.WHERE, Ops.NEG), str
    )

    def supported_dtypes(self) -> set[DType]:
        return set(_C_NAMES)


@dataclass
class Text:
    """A function under construction."""

    pointers: Mapping[UOp, str]
    names: dict[UOp, str] = field(default_factory=dict, init=False)
    lines: list[str] = field(default_factory=list, init=False)
    depth: int = field(default=1, init=False)
    made: int = field(default=0, init=False)
    from_memory: set[UOp] = field(default_factory=set, init=False)

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def enter(self, line: str) -> None:
        """A line that opens a brace."""
        self.emit(line)
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1
        self.emit("}")

    def new(self, prefix: str) -> str:
        """A name. A routine may compute the same node again in another loop."""
        self.made += 1
        return f"{prefix}{self.made}"


@dataclass
class _Function(Text):
    uses: Counter[UOp] = field(default_factory=Counter)
    prototypes: set[str] = field(default_factory=set)
    independent: set[UOp] = field(default_factory=set)
    scalar: set[UOp] = field(default_factory=set)
    reductions: Mapping[UOp, list[tuple[str, UOp]]] = field(default_factory=dict)
    divided: UOp | None = None


def render(
    name: str,
    uops: Sequence[UOp],
    pointers: Mapping[UOp, int],
    written: set[int],
    divided: UOp | None,
) -> tuple[str, set[str]]:
    """The text of `void name(void *const *buffers, begin, end)` and the prototypes it needs.

    pointers: for each PARAM the position in `buffers`. divided: the loop cut by begin and end.
    """
    function = _Function({u: f"p{i}" for u, i in pointers.items()})
    function.uses = Counter(s for u in uops for s in u.src)
    function.reductions, function.divided = _reductions(uops), divided
    function.independent = _independent(uops)
    function.scalar = (_scalar(uops) - function.independent) | _interleaved(uops)
    for u in uops:
        _render_one(function, u)
    return callable_text(name, function.lines, pointers, written), function.prototypes


def callable_text(
    name: str, lines: Sequence[str], pointers: Mapping[UOp, int], written: set[int]
) -> str:
    """The function of these lines, and around it the one that the core calls."""
    kinds = {i: _C_NAMES[u.dtype] for u, i in pointers.items()}
    order = sorted(kinds)
    parameters = ", ".join(
        f"{'' if i in written else 'const '}{kinds[i]} *restrict p{i}" for i in order
    )
    arguments = ", ".join(f"({kinds[i]} *)buffers[{i}]" for i in order)
    return "\n".join(
        (
            "static __attribute__((noinline, noipa))",
            f"void {name}_body({parameters}, int64_t begin, int64_t end) {{",
            *lines,
            "}",
            f"void {name}(void *const *buffers, int64_t begin, int64_t end) {{",
            f"  {name}_body({arguments}, begin, end);",
            "}",
        )
    )


def function_name(f: "Text", u: UOp) -> str | None:
    """Of what is written as a call, or is to wrap around; None for other operators."""
    if u.op in _WRAPPING and u.dtype in dtypes.ints and u in f.from_memory:
        return _WRAPPING[u.op]
    return u.op.name.lower() if u.op in _FUNCTIONS else called_name(u)


def called(name: str, dtype: DType, operands: Sequence[str]) -> str:
    """The C expression for what has such a name."""
    if dtype not in dtypes.ints:
        return c_math.expression(name, dtype, operands)
    unsigned = "uint64_t" if dtype.itemsize == 8 else "uint32_t"
    return _WRAPPING_TEXTS[name].format(*operands, t=_C_NAMES[dtype], u=unsigned)


def operation(op: Ops, operands: Sequence[str]) -> str:
    """What C and CUDA write alike, without parentheses."""
    return _FORMS[op].format(*operands)


def c_name(dtype: DType) -> str:
    return _C_NAMES[dtype]


# --- one UOp ---


def _render_one(f: _Function, u: UOp) -> None:
    match u.op:
        case Ops.NOOP | Ops.GROUP | Ops.CONST | Ops.SINK | Ops.BARRIER | Ops.STACK:
            return
        case Ops.PARAM:
            f.names[u] = f.pointers[u]
        case Ops.AFTER:
            f.names[u] = f.names[u.src[0]]
        case Ops.BUFFER:
            kind, count = _C_NAMES[u.dtype], u.max_numel()
            scalar = u.addrspace is AddrSpace.REG and count == 1
            f.names[u] = f.new("acc" if scalar else "row")
            # gcc 12 takes arrays to be aligned for vectors, and forgets to align them.
            array = f"{f.names[u]}[{count}] __attribute__((aligned(64)))"
            f.emit(f"{kind} {f.names[u] if scalar else array};")
        case Ops.RANGE:
            f.names[u] = f.new("i")
            if u in f.reductions:
                clauses = (f"reduction({op}:{f.names[acc]})" for op, acc in f.reductions[u])
                f.emit(f"#pragma omp simd {' '.join(clauses)}")
            elif u in f.independent:
                f.emit("#pragma omp simd")
            i, kind = f.names[u], _kind(f, u)
            first, last = ("begin", "end") if u is f.divided else ("0", operand(f, u.src[0]))
            f.enter(f"for ({kind} {i} = {first}; {i} < {last}; {i}++) {{")
            if u in f.scalar:
                f.emit(SCALAR_MARK)
        case Ops.END | Ops.ENDIF:
            f.leave()
        case Ops.IF:
            f.enter(f"if ({operand(f, u.src[0])}) {{")
        case Ops.INDEX:
            buffer, index = u.src
            pointer = f.names[buffer]
            is_scalar = pointer.startswith("acc")
            f.names[u] = pointer if is_scalar else f"{pointer}[{operand(f, index)}]"
        case Ops.STORE:
            f.emit(f"{f.names[u.src[0]]} = {operand(f, u.src[1])};")
        case Ops.LOAD:
            f.from_memory.add(u)
            text = f.names[u.src[0]]
            if len(u.src) == 3:
                text = f"({operand(f, u.src[2])} ? {text} : {operand(f, u.src[1])})"
            _assign(f, u, text, u.src[0].addrspace is AddrSpace.REG and f.uses[u] == 1)
        case _:
            name = called_name(u)
            if name != PLACE and (name is not None or any(s in f.from_memory for s in u.src)):
                f.from_memory.add(u)
            constant = u.op is Ops.CAST and u.src[0].op is Ops.CONST
            keep = u.op is Ops.WHERE or c_math.is_function(name)
            _assign(f, u, _expression(f, u), constant or (f.uses[u] == 1 and not keep))


def _assign(f: _Function, u: UOp, text: str, inline: bool) -> None:
    if inline:
        f.names[u] = text
        return
    f.names[u] = f.new("v")
    f.emit(f"{_kind(f, u)} {f.names[u]} = {text};")


def _kind(f: _Function, u: UOp) -> str:
    """The C type of a value. Indices are wide: gcc must not fear that they wrap around."""
    is_index = u.dtype == dtypes.int32 and u not in f.from_memory
    return _C_NAMES[dtypes.int64 if is_index else u.dtype]


def operand(f: Text, u: UOp) -> str:
    return constant(u.arg, u.dtype) if u.op is Ops.CONST else f.names[u]


def _expression(f: _Function, u: UOp) -> str:
    if u.op is Ops.CAST and u.src[0].op is Ops.CONST:
        return constant(u.src[0].arg, u.dtype)
    source = [operand(f, s) for s in u.src]
    name = function_name(f, u)
    if name is not None:
        if u.dtype not in dtypes.ints and c_math.is_function(name):
            f.prototypes.add(c_math.prototype(name, u.dtype))
        return called(name, u.dtype, source)
    kind = _kind(f, u)
    match u.op:
        case Ops.CAST if u.dtype == dtypes.float16:
            return f"tt_to_half({source[0]})"
        case Ops.CAST if u.src[0].dtype == dtypes.float16:
            return f"tt_from_half({source[0]})"
        case Ops.CAST if u.dtype in dtypes.ints and u.src[0].dtype in dtypes.floats:
            # gcc would make trunc of a conversion there and back.
            return f"(({_C_NAMES[u.dtype]}){source[0]} ^ tt_zero)"
        case Ops.CAST:
            return f"(({kind}){source[0]})"
        case Ops.BITCAST:
            given = _C_NAMES[u.src[0].dtype]
            return f"((union {{{given} from; {kind} to;}}){{.from = {source[0]}}}).to"
    return f"({operation(u.op, source)})"


def constant(value: object, dtype: DType) -> str:
    if dtype in _HALF_BITS:
        return str(_HALF_BITS[dtype](float(value)))  # type: ignore[arg-type]
    if dtype in dtypes.floats:
        number = float(value)  # type: ignore[arg-type]
        f = c_math.suffix(dtype)
        if math.isnan(number):
            return f'__builtin_nan{f}("")'
        if math.isinf(number):
            return f"({'-' if number < 0 else ''}__builtin_inf{f}())"
        text = f"{number!r}{f}"
        return f"({text})" if text.startswith("-") else text
    if dtype == dtypes.bool:
        return "1" if value else "0"
    number = around(int(value), dtype)  # type: ignore[call-overload]
    long = "ll" if dtype.itemsize == 8 else ""
    if dtype in dtypes.uints:
        return f"{number}u{long}"
    text = f"{number}{long}"
    if number == -(2**63):
        text = f"{number + 1}ll - 1"
    return text if number >= 0 else f"({text})"


# --- loops for the vector unit ---


def _independent(uops: Sequence[UOp]) -> set[UOp]:
    """Innermost loops whose iterations do not depend on each other, by their kind."""
    edges = [u for u in uops if u.op in (Ops.RANGE, Ops.END)]
    return {
        u
        for u, after in pairwise(edges)
        if u.op is Ops.RANGE and after.op is Ops.END and u.arg[-1] is AxisType.LOCAL
    }


def _scalar(uops: Sequence[UOp]) -> set[UOp]:
    """Short innermost loops that gcc must not unroll into the vectors of the loop around them.

    Where values are chosen by a condition, it loads neighbours under a mask, and takes the mask of
    the first vector for the others too: gcc 12 writes zeros (its bug 114375 is of the same kind).
    """
    short = {u for u in uops if u.op is Ops.RANGE and u.vmax < _MOST_UNROLLED}
    if not short or not any(_is_choice(u, short) for u in uops):
        return set()
    found: set[UOp] = set()
    inner: UOp | None = None
    for u in uops:
        if u.op in (Ops.RANGE, Ops.END):
            inner = u if u in short else None
        elif inner is not None and u.op is Ops.STORE and u.src[0].addrspace is not AddrSpace.REG:
            found.add(inner)
    return found


def _interleaved(uops: Sequence[UOp]) -> set[UOp]:
    """Loops with loads under a condition at several places of memory that they take steps over.

    gcc 12 makes one load of them, for the wrong iterations (its bug 114375).
    """
    open_loops: list[UOp] = []
    places: dict[tuple[UOp, UOp], set[UOp]] = {}
    for u in uops:
        if u.op is Ops.RANGE:
            open_loops.append(u)
        elif u.op is Ops.END:
            open_loops.pop()
        elif u.op is Ops.LOAD and len(u.src) == 3 and open_loops:
            buffer, index = u.src[0].src
            places.setdefault((open_loops[-1], buffer), set()).add(index)
    return {
        loop
        for (loop, _), several in places.items()
        if len(several) > 1 and any(step(index, loop) not in (0, 1) for index in several)
    }


def _is_choice(u: UOp, known: set[UOp]) -> bool:
    """Whether it takes one of two values by a condition that the loops in `known` do not settle."""
    if u.op is Ops.WHERE:
        asked = u.src[0].toposort()
        return any(s.op in (Ops.LOAD, Ops.RANGE) and s not in known for s in asked)
    return u.op is Ops.LOAD and len(u.src) == 3


def _reductions(uops: Sequence[UOp]) -> dict[UOp, list[tuple[str, UOp]]]:
    """(OpenMP operator, accumulator)s of each innermost loop that does nothing but accumulate."""
    found: dict[UOp, list[tuple[str, UOp]]] = {}
    opened: list[tuple[UOp, list[UOp]]] = []
    for u in uops:
        if u.op is Ops.RANGE:
            opened.append((u, []))
        elif u.op in (Ops.STORE, Ops.IF) and opened:
            opened[-1][1].append(u)
        elif u.op is Ops.END:
            loop, effects = opened.pop()
            if opened:
                opened[-1][1].append(u)
            if loop.arg[-1] is AxisType.LOOP:  # in this order, whatever it looks like
                continue
            accumulations = [_accumulation(e) for e in effects]
            if accumulations and None not in accumulations:
                found[loop] = [a for a in accumulations if a is not None]
    return found


def _accumulation(u: UOp) -> tuple[str, UOp] | None:
    """acc = acc op value, as (the OpenMP name of op, acc)."""
    if u.op is not Ops.STORE or u.src[0].addrspace is not AddrSpace.REG:
        return None
    target, value = u.src[0], u.src[1]
    if value.op is Ops.WHERE:  # acc < x ? x : acc
        less, larger, total = value.src
        is_maximum = less.op is Ops.CMPLT and less.src == (total, larger)
        operator = "max" if is_maximum else None
        sources: tuple[UOp, ...] = (total,)
    else:
        operator, sources = _REDUCTIONS.get(value.op), value.src
    reads = [s for s in sources if s.op is Ops.LOAD and s.src[0] is target]
    return (operator, target.src[0].buf_uop) if operator and len(reads) == 1 else None
