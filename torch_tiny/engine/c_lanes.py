"""Renders a routine as C in which every number of a matrix is a vector: a lane for each matrix.

Loop counters and places are the same for all lanes. Arrays of a matrix are interleaved, so that a
place is one vector. Only arguments, and places that differ between lanes, are gone through one by
one; a loop that does only that is turned inside out, so that memory is read along.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_tiny.engine.c_renderer import Text, c_name, callable_text, operand, operation
from torch_tiny.linalg.kernel import MATRICES, PER_LANE
from torch_tiny.uops import AddrSpace, DType, Ops, UOp, dtypes

VECTOR_BYTES = 64
_BLOCK = 16  # elements of an argument that are copied at a time: a line of the cache


def number_dtype(arguments: Iterable[DType]) -> DType:
    """Of a routine's numbers, by the types of its arguments."""
    return next((dtype for dtype in arguments if dtype in dtypes.floats), dtypes.float32)


def lanes_of(dtype: DType) -> int:
    return VECTOR_BYTES // int(dtype.itemsize)


@dataclass
class _Lanes(Text):
    dtype: DType
    batch: int
    varying: set[UOp] = field(default_factory=set)
    scalar: set[UOp] = field(default_factory=set)  # of one lane, in a loop that is inside out
    one_lane: bool = False

    @property
    def count(self) -> int:
        return lanes_of(self.dtype)

    def vector(self, dtype: DType) -> str:
        return f"tt_{'f' if dtype in dtypes.floats else 'i'}{self.count}"

    def named(self, u: UOp) -> str:
        self.names[u] = self.new("v")
        return self.names[u]


def render(
    name: str, uops: Sequence[UOp], pointers: Mapping[UOp, int], written: set[int], batch: int,
    dtype: DType,
) -> str:  # fmt: skip
    """The text of `void name(void *const *buffers, begin, end)`, over groups of matrices."""
    f = _Lanes({u: f"p{i}" for u, i in pointers.items()}, dtype, batch)
    for u in uops:
        _one(f, u)
    return callable_text(name, f.lines, pointers, written)


def _one(f: _Lanes, u: UOp) -> None:
    match u.op:
        case Ops.CONST | Ops.STACK | Ops.NOOP | Ops.BARRIER:
            return
        case Ops.PARAM:
            f.names[u] = f.pointers[u]
        case Ops.BUFFER:
            size = "" if _is_variable(u) else f"[{u.max_numel()}]"
            f.emit(f"{f.vector(u.dtype)} {f.named(u)}{size};")
        case Ops.RANGE:
            _open(f, u)
        case Ops.END if u.src[1].arg[-1] is PER_LANE:
            for _ in range(3):  # over blocks, lanes and elements
                f.leave()
            f.one_lane = False
        case Ops.END | Ops.ENDIF:
            f.leave()
        case Ops.IF:
            f.enter(f"if ({_condition(f, u.src[0])}) {{")
        case Ops.INDEX:
            if u.src[1] in f.varying:
                f.varying.add(u)
        case Ops.LOAD:
            _load(f, u)
        case Ops.STORE:
            _store(f, u)
        case _:
            _compute(f, u)


def _condition(f: _Lanes, u: UOp) -> str:
    """Whether it holds for one of the lanes."""
    if u not in f.varying:
        return operand(f, u)
    if f.one_lane:
        return _of_lane(f, u)
    return f"{f.vector(dtypes.bool)}_any({f.names[u]})"


def _is_variable(buffer: UOp) -> bool:
    return buffer.addrspace is AddrSpace.REG


def _open(f: _Lanes, u: UOp) -> None:
    i = f.named(u)
    end = operand(f, u.src[0])
    if u.arg[-1] is MATRICES:
        f.varying.add(u)
        f.enter("for (int64_t group = begin; group < end; group++) {")
        f.emit(f"const int64_t first = group * {f.count};")
    elif u.arg[-1] is PER_LANE:
        f.one_lane = True
        f.enter(f"for (int64_t {i}_0 = 0; {i}_0 < {end}; {i}_0 += {_BLOCK}) {{")
        f.emit(f"const int64_t {i}_1 = {i}_0 + {_BLOCK} < {end} ? {i}_0 + {_BLOCK} : {end};")
        f.enter(f"for (int l = 0; l < {f.count}; l++) {{")
        f.emit(f"const int64_t own = {_own(f)};")
        f.enter(f"for (int64_t {i} = {i}_0; {i} < {i}_1; {i}++) {{")
    else:
        f.enter(f"for (int64_t {i} = 0; {i} < {end}; {i}++) {{")


def _own(f: _Lanes) -> str:
    """The matrix of lane l. Lanes that are left over do the last one again."""
    last = f.batch - 1
    return f"first + l < {last} ? first + l : {last}"


def _place(f: _Lanes, u: UOp) -> tuple[str, bool]:
    """The place of lane l as C, and whether it is a vector that all lanes share the place of."""
    memory, at = u.src
    name = f.names[memory]
    if _is_variable(memory):
        return (f"{name}[l]" if f.one_lane else name), not f.one_lane
    if memory.op is Ops.PARAM:
        return f"{name}[{_of_lane(f, at)}]", False
    if f.one_lane or u in f.varying:
        return f"{name}[{_of_lane(f, at)}][l]", False
    return f"{name}[{operand(f, at)}]", True


def _emit_for_lanes(f: _Lanes, line: str) -> None:
    f.enter(f"for (int l = 0; l < {f.count}; l++) {{")
    f.emit(f"const int64_t own = {_own(f)};")
    f.emit(line)
    f.leave()


def _load(f: _Lanes, u: UOp) -> None:
    place, is_vector = _place(f, u.src[0])
    name = f.named(u)
    f.varying.add(u)
    if f.one_lane:
        f.scalar.add(u)
        f.emit(f"const {_element(f, u.dtype)} {name} = {place};")
    elif is_vector:
        f.emit(f"const {f.vector(u.dtype)} {name} = {place};")
    else:
        f.emit(f"{f.vector(u.dtype)} {name};")
        _emit_for_lanes(f, f"{name}[l] = {place};")


def _store(f: _Lanes, u: UOp) -> None:
    place, is_vector = _place(f, u.src[0])
    value = u.src[1]
    if f.one_lane:
        f.emit(f"{place} = {_of_lane(f, value)};")
    elif is_vector:
        f.emit(f"{place} = {_vector(f, value)};")
    else:
        _emit_for_lanes(f, f"{place} = {_of_lane(f, value)};")


def _element(f: _Lanes, dtype: DType) -> str:
    if dtype in dtypes.floats:
        return c_name(f.dtype)
    return c_name(dtypes.int32 if f.count == 16 else dtypes.int64)


def _vector(f: _Lanes, u: UOp) -> str:
    """u as a vector."""
    if u in f.varying:
        return f.names[u]
    text = operand(f, u)
    sign = "-" if u.dtype == dtypes.bool else "+"
    return f"((({f.vector(u.dtype)}){{0}}) {sign} ({_element(f, u.dtype)}){text})"


def _of_lane(f: _Lanes, u: UOp) -> str:
    """u for lane l."""
    if u.op is Ops.RANGE and u.arg[-1] is MATRICES:
        return "own"
    if u not in f.varying or u in f.scalar:
        return operand(f, u)
    if f.names.get(u, "").startswith("v"):
        return f"{f.names[u]}[l]"
    return _expression(f, u, [_of_lane(f, s) for s in u.src], False)


def _compute(f: _Lanes, u: UOp) -> None:
    if not any(s in f.varying for s in u.src):
        name = f.named(u)
        kind = "int64_t" if u.dtype == dtypes.int32 else c_name(u.dtype)
        text = _expression(f, u, [operand(f, s) for s in u.src], False)
        f.emit(f"const {kind} {name} = {text};")
        return
    f.varying.add(u)
    if any((s.op is Ops.RANGE and s.arg[-1] is MATRICES) or f.names.get(s) == "" for s in u.src):
        f.names[u] = ""  # a place in an argument: written out for each lane where it is used
        return
    if f.one_lane:
        f.scalar.add(u)
        text = _expression(f, u, [_of_lane(f, s) for s in u.src], False)
        kind = "_Bool" if u.dtype == dtypes.bool else _element(f, u.dtype)
        f.emit(f"const {kind} {f.named(u)} = {text};")
        return
    operands = [_vector(f, s) for s in u.src]
    if u.op is Ops.WHERE and u.src[0] not in f.varying:
        operands[0] = operand(f, u.src[0])
    text = _expression(f, u, operands, True)
    f.emit(f"const {f.vector(u.dtype)} {f.named(u)} = {text};")


def _expression(f: _Lanes, u: UOp, source: list[str], vector: bool) -> str:
    kind = f.vector(u.dtype)
    match u.op:
        case Ops.WHERE if vector and u.src[0] in f.varying:
            return f"{kind}_pick({', '.join(source)})"
        case Ops.SQRT:
            suffix = "" if u.dtype == dtypes.float64 else "f"
            return f"{kind}_sqrt({source[0]})" if vector else f"__builtin_sqrt{suffix}({source[0]})"
        case Ops.CAST if vector and u.dtype in dtypes.floats:
            return f"{kind}_of({source[0]})"
        case Ops.CAST if vector:
            return source[0]
        case Ops.CAST:
            return f"(({c_name(u.dtype)}){source[0]})"
    return f"({operation(u.op, source)})"
