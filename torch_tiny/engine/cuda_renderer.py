"""Renders the linear UOps of one shaped kernel as CUDA C++."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_tiny.engine import c_math, c_renderer
from torch_tiny.engine.c_renderer import c_name, called, constant, function_name, operand, operation
from torch_tiny.engine.cuda_shape import (
    ACROSS,
    LANES,
    ROW_SLOTS,
    THREADS,
    WARP,
    WIDE,
    Launch,
)
from torch_tiny.linalg.kernel import COMBINE
from torch_tiny.uops import AddrSpace, Ops, UOp, called_name, dtypes

UNROLLED_TRIPS = 16

_HALVES = {dtypes.float16: "half", dtypes.bfloat16: "bfloat16"}

HELPERS = """
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;
typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t; typedef bool _Bool;
#define inff() __int_as_float(0x7f800000)
#define inf() (double)inff()
#define __builtin_inff inff
#define __builtin_inf inf
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_nan(text) (double)__builtin_nanf(text)
template <class T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) tt_wide { T at[N]; };
template <class To, class From> __device__ inline To tt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
__device__ inline float tt_from_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
__device__ inline uint16_t tt_to_half(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
__device__ inline float tt_from_bfloat16(uint16_t half) {
  return tt_bits<float>((uint32_t)half << 16);
}
__device__ inline uint16_t tt_to_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  uint32_t bits = tt_bits<uint32_t>(value);
  return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}
__device__ inline float tt_expf(float x) { return expf(x); }
struct tt_ADD { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct tt_MUL { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
struct tt_MAX {
  template <class T> __device__ T operator()(T a, T b) const { return a < b ? b : a; }
};
struct tt_OR { template <class T> __device__ T operator()(T a, T b) const { return a | b; } };
struct tt_AND { template <class T> __device__ T operator()(T a, T b) const { return a & b; } };
template <class T> __device__ inline T tt_shuffled(T x, int by) {
  if constexpr (sizeof(T) < 4) return (T)__shfl_xor_sync(0xffffffffu, (int)x, by);
  else return __shfl_xor_sync(0xffffffffu, x, by);
}
template <class Op, class T> __device__ inline T tt_warp(T x) {
#pragma unroll
  for (int by = 16; by; by >>= 1) x = Op()(x, tt_shuffled(x, by));
  return x;
}
// All threads get the result. shared: one place per warp, used by this call alone.
template <class Op, int Warps, class T> __device__ inline T tt_block(T x, T *shared) {
  x = tt_warp<Op>(x);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  x = shared[threadIdx.x & (Warps - 1)];
#pragma unroll
  for (int by = Warps / 2; by; by >>= 1) x = Op()(x, tt_shuffled(x, by));
  return x;
}
template <class Op, int Threads, class T> __device__ inline T tt_column(T x, T *shared) {
  shared[threadIdx.y * 32 + threadIdx.x] = x;
  __syncthreads();
  x = shared[threadIdx.x];
#pragma unroll
  for (int y = 1; y < Threads; y++) x = Op()(x, shared[y * 32 + threadIdx.x]);
  return x;
}
""" + c_math.comparisons(
    "__device__ inline",
    "__int_as_float(0x7fffffff)",
    "__longlong_as_double(0x7fffffffffffffffll)",
)


class Target(c_renderer.Target):
    """What tinygrad's lowering has to know about our CUDA."""

    code_for_op: dict[Ops, Callable[..., str]] = dict.fromkeys(
        (*c_renderer.Target.code_for_op, Ops.MAX), str
    )


@dataclass
class _Function(c_renderer.Text):
    launch: Launch
    scalars: frozenset[UOp]
    trips: dict[UOp, str] = field(default_factory=dict)  # loop of threads -> counter of its trips
    open: list[UOp] = field(default_factory=list)  # loops and conditions
    read_back: set[UOp] = field(default_factory=set)  # buffers that are both stored to and loaded
    stored: bool = False  # to one of them, in the open loop of threads

    def is_open(self, kind: object) -> bool:
        return any(_is_loop(u, kind) for u in self.open)


def render(
    uops: Sequence[UOp], launch: Launch, pointers: Mapping[UOp, str], scalars: frozenset[UOp]
) -> str:
    """The text inside the kernel's braces. pointers: names; scalars: PARAMs given by value."""
    f = _Function(pointers, launch, scalars)
    accessed = {op: {u.src[0].buf_uop for u in uops if u.op is op} for op in (Ops.LOAD, Ops.STORE)}
    f.read_back = {u for u in accessed[Ops.STORE] & accessed[Ops.LOAD] if _is_memory(u)}
    for u in uops:
        _render_one(f, u)
    return "\n".join(f.lines)


# --- one UOp ---


def _render_one(f: _Function, u: UOp) -> None:
    match u.op:
        case Ops.NOOP | Ops.GROUP | Ops.CONST | Ops.SINK | Ops.STACK:
            return
        case Ops.BARRIER:
            f.emit(_sync(f))
        case Ops.PARAM:
            f.names[u] = f.pointers[u]
        case Ops.AFTER:
            f.names[u] = f.names[u.src[0]]
        case Ops.BUFFER:
            _declare(f, u)
        case Ops.RANGE:
            _open(f, u)
        case Ops.IF:
            f.enter(f"if ({operand(f, u.src[0])}) {{")
            f.open.append(u)
        case Ops.END | Ops.ENDIF:
            _close(f)
        case Ops.INDEX:
            f.names[u] = _place(f, u)
        case Ops.STORE:
            _store(f, u)
        case Ops.LOAD:
            _load(f, u)
        case _:
            if called_name(u) is not None or any(s in f.from_memory for s in u.src):
                f.from_memory.add(u)
            _assign(f, u, _expression(f, u))


def _is_memory(u: UOp) -> bool:
    return u.addrspace is not AddrSpace.REG


def _is_loop(u: UOp, kind: object) -> bool:
    return u.op is Ops.RANGE and u.arg[-1] is kind


def _declare(f: _Function, u: UOp) -> None:
    kind, count = c_name(u.dtype), u.max_numel()
    name = f.names[u] = f.new("r")
    if u.addrspace is AddrSpace.REG:
        if count == 1:
            f.emit(f"{kind} {name};")
        elif u.arg.slot >= ROW_SLOTS:
            f.emit(f"alignas(16) {kind} {name}[{count}];")
        else:
            f.emit(f"tt_wide<{kind}, {count}> {name};")
        return
    padded = -(-count // 16) * 16  # each row begins where a wide load may
    rows = f.launch.block[1] if f.launch.is_by_rows else 1
    f.emit(f"alignas(16) __shared__ {kind} {name}_all[{padded * rows}];")
    f.emit(f"{kind} *{name} = {name}_all + threadIdx.y * {padded};")


def _open(f: _Function, u: UOp) -> None:
    i = f.names[u] = f.new("i")
    kind, end, axis = c_name(u.dtype), operand(f, u.src[0]), u.arg[-1]
    if axis is ACROSS:
        _open_across(f, i, kind, int(u.vmax) + 1)
    elif axis is THREADS:
        group = f.launch.group
        steps = int(u.vmax) + 1
        trips = -(-steps // group)
        k = f.trips[u] = f"{i}_trip"
        me = "threadIdx.x" if f.launch.is_by_rows else "threadIdx.y"
        if trips <= UNROLLED_TRIPS:
            f.emit("#pragma unroll")
        f.enter(f"for (int {k} = 0; {k} < {trips}; {k}++) {{")
        f.emit(f"const {kind} {i} = {k} * {group} + {me};")
        is_whole = steps % group == 0 and u.src[0].op is Ops.CONST
        f.enter("{" if is_whole else f"if ({i} < {end}) {{")
        f.stored = False
    elif axis is WIDE:
        f.enter("{")
        f.emit(f"const {kind} {i} = 0;")
    else:
        if axis is LANES:
            f.emit("#pragma unroll")
        f.enter(f"for ({kind} {i} = 0; {i} < {end}; {i}++) {{")
    f.open.append(u)


def _open_across(f: _Function, i: str, kind: str, count: int) -> None:
    launch = f.launch
    if launch.way == "columns":
        f.emit(f"const {kind} {i}_own = ({kind})blockIdx.x * {WARP} + threadIdx.x;")
        f.emit(f"const bool leads = threadIdx.y == 0 && {i}_own < {count};")
        f.emit(f"const {kind} {i} = {i}_own < {count} ? {i}_own : {count - 1};")
        f.enter("{")
        return
    each, me = {
        "flat": (launch.block[0], "threadIdx.x"),
        "rows": (launch.block[1], "threadIdx.y"),
        "group": (launch.block[1], "threadIdx.y"),
    }[launch.way]
    f.emit(f"const {kind} {i} = ({kind})blockIdx.x * {each} + {me};")
    # Whole warps leave at the end of the rows, so that those that stay can shuffle.
    f.enter("{" if count % each == 0 else f"if ({i} < {count}) {{")


def _close(f: _Function) -> None:
    f.leave()
    if _is_loop(f.open.pop(), THREADS):
        f.leave()
        if f.stored and f.launch.way != "group":  # a routine says itself where its threads meet
            f.emit(_sync(f))
        f.stored = False


def _sync(f: _Function) -> str:
    return "__syncwarp();" if f.launch.group == WARP else "__syncthreads();"


def _place(f: _Function, u: UOp) -> str:
    buffer, index = u.src
    root = buffer.buf_uop
    name = f.names[buffer]
    if root in f.scalars:
        return name
    if root.op is Ops.BUFFER and u.addrspace is AddrSpace.REG:
        if root.max_numel() == 1:
            return name
        if root.arg.slot >= ROW_SLOTS:
            return f"{name}[{_in_row(f, index)}]"
        return f"{name}.at[{operand(f, index)}]"
    return f"{name}[{operand(f, index)}]"


def _in_row(f: _Function, index: UOp) -> str:
    """The part of a row that a thread keeps is numbered by trip and lane."""
    loops = {r.arg[-1]: r for r in index.ranges}
    lane = loops.get(LANES, loops.get(WIDE))
    trip = f.trips[loops[THREADS]]
    return trip if lane is None else f"{trip} * {int(lane.vmax) + 1} + {f.names[lane]}"


def _wide_loop(f: _Function) -> UOp | None:
    return f.open[-1] if f.open and _is_loop(f.open[-1], WIDE) else None


def _wide(f: _Function, loop: UOp, access: UOp, const: str) -> str:
    kind = f"tt_wide<{c_name(access.dtype)}, {int(loop.vmax) + 1}>"
    return f"*({const}{kind} *)&{f.names[access]}"


def _store(f: _Function, u: UOp) -> None:
    target, value = u.src[0], u.src[1]
    if (loop := _wide_loop(f)) is not None:
        f.emit(f"{_wide(f, loop, target, '')} = {f.names[value]};")
    else:
        text = f"{f.names[target]} = {operand(f, value)};"
        alone = f.launch.way != "flat" and not f.is_open(THREADS)
        if alone and _is_memory(target):
            leads = "leads" if f.launch.way == "columns" else "threadIdx.x == 0"
            text = f"if ({leads}) {text}"
        f.emit(text)
    f.stored |= target.buf_uop in f.read_back


def _load(f: _Function, u: UOp) -> None:
    f.from_memory.add(u)
    if (loop := _wide_loop(f)) is not None:
        name = f.names[u] = f.new("v")
        f.emit(f"const auto {name} = {_wide(f, loop, u.src[0], 'const ')};")
        return
    text = f.names[u.src[0]]
    if len(u.src) == 3:
        text = f"({operand(f, u.src[2])} ? {text} : {operand(f, u.src[1])})"
    _assign(f, u, text)


def _assign(f: _Function, u: UOp, text: str) -> None:
    if u.op is Ops.CAST and u.src[0].op is Ops.CONST:
        f.names[u] = text
        return
    f.names[u] = f.new("v")
    f.emit(f"const {c_name(u.dtype)} {f.names[u]} = {text};")


def _expression(f: _Function, u: UOp) -> str:
    name = function_name(f, u)
    if name is not None and name.startswith(COMBINE):
        return _combined(f, u, name.removeprefix(COMBINE))
    if u.op is Ops.CAST and u.src[0].op is Ops.CONST:
        return constant(u.src[0].arg, u.dtype)
    source = [operand(f, s) for s in u.src]
    kind = c_name(u.dtype)
    if name is not None:
        return called(name, u.dtype, source).replace("__builtin_", "")
    match u.op:
        case Ops.CAST if u.dtype in _HALVES:
            return f"tt_to_{_HALVES[u.dtype]}({source[0]})"
        case Ops.CAST if u.src[0].dtype in _HALVES:
            return f"({kind})tt_from_{_HALVES[u.src[0].dtype]}({source[0]})"
        case Ops.CAST:
            return f"({kind}){source[0]}"
        case Ops.BITCAST:
            return f"tt_bits<{kind}>({source[0]})"
    return operation(u.op, source)


def _combined(f: _Function, u: UOp, operator: str) -> str:
    """The group's result, which every thread gets. All threads have to come here."""
    value = u.src[0]
    is_total = value.op is Ops.LOAD and value.src[0].addrspace is AddrSpace.REG
    if not is_total or f.is_open(THREADS):
        raise NotImplementedError("a reduction that is not of threads in step")
    kind, launch = c_name(u.dtype), f.launch
    if launch.is_by_rows and launch.group == WARP:
        return f"tt_warp<tt_{operator}>({f.names[value]})"
    shared = f.new("shared")
    count = launch.group // WARP if launch.is_by_rows else launch.group * WARP
    f.emit(f"__shared__ {kind} {shared}[{count}];")
    how, size = ("block", count) if launch.is_by_rows else ("column", launch.group)
    return f"tt_{how}<tt_{operator}, {size}>({f.names[value]}, {shared})"
