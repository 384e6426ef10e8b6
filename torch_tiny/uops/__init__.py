"""The one door to tinygrad: UOps, passes, and float operators that its algebra leaves alone."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tinygrad.codegen import (
    devectorizer2,
    ew_devectorizer,
    line_rewrite,
    merge_reduce_ends,
    pm_add_loads,
    pm_cast_float_alu,
    pm_casted_consts,
    pm_expand_broadcast,
    pm_linearize_cleanups,
)
from tinygrad.codegen.decomp.op import get_late_rewrite_patterns, get_simplifying_rewrite_patterns
from tinygrad.codegen.late.coalesce import simplify_valid_load
from tinygrad.codegen.late.gater import pm_move_gates_from_index
from tinygrad.codegen.late.linearizer import (
    CFGContext,
    linearize,
    pm_add_control_flow,
)
from tinygrad.codegen.simplify import (
    pm_load_collapse,
    pm_reduce_simplify,
    pm_reduce_unparented,
    pm_split_ranges,
)
from tinygrad.dtype import AddrSpace, DType, Invalid, dtypes
from tinygrad.helpers import Context, Target
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import create_non_native_float_pats, pm_manual_bf16_cast
from tinygrad.schedule import create_schedule
from tinygrad.schedule.indexing import run_rangeify
from tinygrad.schedule.rangeify import (
    LimitBufsContext,
    earliest_rewrites,
    pm_add_buffers,
    pm_add_param_range_tags,
    pm_const_buffer_folding,
    pm_limit_bufs,
    pm_mops,
    pm_no_indexing_calls,
    remove_bufferize,
    split_kernels,
)
from tinygrad.uop import GroupOp, Ops
from tinygrad.uop.movement import mop_cleanup
from tinygrad.uop.ops import (
    AxisType,
    KernelInfo,
    PatternMatcher,
    UOp,
    UPat,
    graph_rewrite,
    identity_element,
)
from tinygrad.uop.symbolic import (
    invalid_gate,
    pm_clean_up_group_sink,
    pm_move_where_on_load,
    pm_remove_invalid,
    sym,
    symbolic,
    symbolic_simple,
)
from tinygrad.uop.weak import pm_cast_weak, pm_commit_weak, pm_lower_index_dtype

from torch_tiny.uops.constants import equals, factor, is_constant
from torch_tiny.uops.merge import flatten_ranges, merge_ranges, split_ends
from torch_tiny.uops.rewriting import compiling

__all__ = [
    "SEALED",
    "AddrSpace",
    "AxisType",
    "Context",
    "DType",
    "GroupOp",
    "Invalid",
    "Ops",
    "PatternMatcher",
    "Renderer",
    "Routine",
    "Target",
    "UOp",
    "UPat",
    "buffer_param",
    "call",
    "called_name",
    "combined",
    "compiling",
    "dtypes",
    "factor",
    "flatten_kernel",
    "folded",
    "graph_rewrite",
    "half_casts",
    "identity_element",
    "lower_kernel",
    "move_gates",
    "native_half_casts",
    "repeated_sums",
    "routine_of",
    "routine_results",
    "schedule",
    "seal_floats",
    "sealed",
    "simpler_indices",
    "simplified",
    "sink_of",
    "stride",
    "substituted",
    "valid_operands",
]

DEVICE = "CPU"

_HALVES = (dtypes.float16, dtypes.bfloat16)

# Half types are storage: everything is computed in float32, conversions from double go through it.
native_half_casts: PatternMatcher = create_non_native_float_pats(_HALVES)
half_casts: PatternMatcher = native_half_casts + pm_manual_bf16_cast


# Without tinygrad's last two rules: they make the other side of a WHERE the value that a gated load
# has outside its gate, also where the load's type cannot hold it.
move_gates: PatternMatcher = PatternMatcher(pm_move_gates_from_index.patterns[:-2])


def _simpler_index(buf: UOp, x: UOp, cond: UOp, i: UOp) -> UOp | None:  # noqa: ARG001
    """What the gate says of the index. Not of a loop's result: the loop would be there twice."""
    looped = x.op_in_backward_slice_with_self(Ops.END)
    return None if looped else simplify_valid_load(buf, x, cond)


simpler_indices = PatternMatcher(
    [(UPat(Ops.INDEX, src=(UPat.var("buf"), invalid_gate)), _simpler_index)]
)


def _with_valid_operands(u: UOp) -> UOp | None:
    """Where nobody reads a value, tinygrad may have marked what a sealed operator takes as such."""
    if not any(s.base.is_invalid for s in u.src):
        return None
    return u.replace(src=tuple(UOp.const(0, u.dtype) if s.base.is_invalid else s for s in u.src))


valid_operands = PatternMatcher([(UPat(Ops.MULACC, name="u"), _with_valid_operands)])


def buffer_param(slot: int, dtype: DType, size: int) -> UOp:
    """Buffer `slot` of a region, flat."""
    param: UOp = UOp.param(slot, dtype, (size,), DEVICE)
    return param


def call(name: str, *operands: UOp | float) -> UOp:
    """A float operator by its C name without a suffix: call("tanh", x), call("atan2", y, x).

    One or two operands, broadcast. Half types are computed in float32 and rounded once.
    """
    uops = tuple(x if isinstance(x, UOp) else UOp.const(x) for x in operands)
    if len(uops) == 2:
        uops = uops[0]._broadcasted(uops[1])
    dtype = next(x.dtype for x in uops if x.dtype in dtypes.floats)
    if dtype in _HALVES:
        return call(name, *(x.cast(dtypes.float32) for x in uops)).cast(dtype)
    return sealed(name, dtype, uops)


def called_name(u: UOp) -> str | None:
    """The name given to `call`, for a node made by it."""
    if u.op is not Ops.MULACC:
        return None
    mark = u.src[2]
    while mark.op is Ops.CAST:
        mark = mark.src[0]
    return cast(str, mark.arg) if mark.op is Ops.SPECIAL else None


def combined(name: str, x: UOp) -> UOp:
    """What the threads of a group make of their x together; `called_name` gives the name."""
    return sealed(name, x.dtype, (x,))


@dataclass(frozen=True)
class Routine:
    """A kernel that is not made of values: torch_tiny.linalg knows how to write it for a target.

    It works on `batch` matrices; sizes: type and elements of each argument, for one of them.
    """

    name: str
    numbers: tuple[int, ...]
    batch: int
    sizes: tuple[tuple[DType, int], ...]


def routine_results(routine: Routine, count: int, inputs: Sequence[UOp]) -> list[UOp]:
    """Its first `count` arguments are fresh buffers that it fills."""
    fresh = [
        UOp.new_buffer(DEVICE, routine.batch * size, dtype, next(_fresh))
        for dtype, size in routine.sizes[:count]
    ]
    kernel = UOp.sink(arg=_RoutineInfo(name=routine.name, routine=routine)).call(*fresh, *inputs)
    return [buffer.after(kernel) for buffer in fresh]


def routine_of(call: UOp) -> Routine | None:
    """What a kernel of the schedule is, if it is not made of loops around a store."""
    info = call.src[0].arg
    return info.routine if isinstance(info, _RoutineInfo) else None


def seal_floats(sink: UOp) -> UOp:
    """Turns float arithmetic into `call`s: tinygrad's rules take floats for real numbers.

    They fold x-x to 0, x*0 to 0, x/x to 1 and reassociate, which NaN, infinities, -0.0 and rounding
    do not survive. Sealed, the operators run as written. exp2(x*log2(e)) becomes exp(x) on the way.
    """
    return _rewritten(sink, _seal, bottom_up=True)


def schedule(sink: UOp, keep: Callable[[UOp], bool], most_buffers: int = 0) -> tuple[UOp, ...]:
    """tinygrad's schedule: CALL(SINK of loops around one STORE, buffers...)s in order.

    keep(value): whether a value that is used several times is worth storing.
    most_buffers: how many a kernel may have, where there is a limit.
    """
    sink = graph_rewrite(sink, pm_mops + earliest_rewrites, bottom_up=True)
    sink = run_rangeify(sink)
    staged = (u.src[0] for u in sink.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.STAGE)
    uses = Counter(stage.src[1:] for stage in staged)  # its loops are what identifies a STAGE
    passes = symbolic + repeated_sums + pm_reduce_simplify + pm_const_buffer_folding + _inlining
    sink = graph_rewrite(sink, passes, ctx=_Stages(uses, keep))
    if most_buffers:
        numbers = (u.arg[0] for u in sink.toposort() if u.op is Ops.RANGE)
        limit = LimitBufsContext(range_idx=itertools.count(1 + max(numbers, default=0)))
        with Context(MAX_KERNEL_BUFFERS=most_buffers):  # type: ignore[no-untyped-call]
            sink = graph_rewrite(sink, pm_limit_bufs, ctx=limit)
    passes = pm_add_buffers + pm_add_param_range_tags
    sink = graph_rewrite(sink, passes, ctx=itertools.count(), bottom_up=True)
    sink = graph_rewrite(sink, split_kernels, bottom_up=True)
    sink = graph_rewrite(sink, pm_no_indexing_calls)
    return create_schedule(sink).src


def flatten_kernel(sink: UOp) -> UOp:
    """Indices as sums over loops, gathers as loads: the form that loops are fused in."""
    sink = graph_rewrite(sink, pm_mops, bottom_up=True)
    sink = graph_rewrite(sink, pm_load_collapse)
    return _rewritten(sink, sym + flatten_ranges)


def simplified(u: UOp) -> UOp:
    """Of a number: the rules forget shapes, as that of a choice between two equal ones."""
    return _rewritten(u, symbolic)


def folded(u: UOp) -> UOp:
    """The same of a value with a shape, which each operand is given first."""
    return simplified(_rewritten(u, pm_expand_broadcast))


def sink_of(*effects: UOp) -> UOp:
    sink: UOp = UOp.sink(*effects)
    return sink


def substituted(u: UOp, by: Mapping[UOp, UOp]) -> UOp:
    result: UOp = u.substitute(dict(by))
    return result


def stride(load: UOp, loop: UOp) -> int | None:
    """How far the load moves with the first step of the loop; None if that varies."""
    index = load.src[1].get_idx()
    first, second = (substituted(index, {loop: loop.const_like(k)}) for k in (0, 1))
    step = simplified(second - first)
    return step.arg if step.op is Ops.CONST and isinstance(step.arg, int) else None


def lower_kernel(
    sink: UOp,
    target: Renderer,
    shape: Callable[[UOp], UOp],
    casts: PatternMatcher = half_casts,
) -> list[UOp]:
    """tinygrad's passes from loops and REDUCEs to a list of UOps, without those for GPUs.

    shape: rearranges the loops once they are merged where possible.
    casts: half_casts, or native_half_casts where the target converts bfloat16 itself.
    """
    sink = graph_rewrite(sink, pm_split_ranges + flatten_ranges, ctx={})
    sink = graph_rewrite(sink, sym + flatten_ranges + repeated_sums + pm_reduce_unparented)
    sink = shape(graph_rewrite(sink, flatten_ranges + merge_ranges, ctx={}))
    sink = graph_rewrite(
        sink,
        sym + pm_move_where_on_load + flatten_ranges + repeated_sums + pm_reduce_unparented,
    )
    sink = graph_rewrite(sink, mop_cleanup + _accumulators, ctx=itertools.count())
    sink = graph_rewrite(sink, symbolic_simple + pm_expand_broadcast + pm_add_loads)
    sink = graph_rewrite(sink, symbolic_simple + devectorizer2 + simpler_indices, ctx=target)
    sink = graph_rewrite(sink, symbolic_simple + ew_devectorizer, bottom_up=True)
    sink = graph_rewrite(sink, sym + simpler_indices)
    sink = graph_rewrite(sink, symbolic_simple + pm_lower_index_dtype + simpler_indices, ctx={})
    sink = graph_rewrite(sink, symbolic)
    sink = graph_rewrite(sink, pm_cast_float_alu)
    operators = tuple(target.code_for_op)
    early = symbolic_simple + get_simplifying_rewrite_patterns(operators)
    late = early + get_late_rewrite_patterns(operators, False)
    sink = graph_rewrite(sink, early + pm_commit_weak)
    sink = graph_rewrite(sink, late, ctx=target)
    sink = graph_rewrite(sink, move_gates + valid_operands)
    final = pm_commit_weak + pm_cast_weak + late + casts + split_ends + pm_remove_invalid
    sink = graph_rewrite(sink, final, ctx=target)
    sink = graph_rewrite(sink, pm_casted_consts, walk=True)
    sink = graph_rewrite(sink, pm_add_control_flow, ctx=CFGContext(sink), bottom_up=True)
    return line_rewrite(linearize(sink), pm_linearize_cleanups)


# --- how it is done ---

_fresh = itertools.count(1 << 24)  # apart from the buffers that the schedule makes


@dataclass(frozen=True)
class _RoutineInfo(KernelInfo):
    routine: Routine | None = None


def _rewritten(u: UOp, passes: PatternMatcher, bottom_up: bool = False) -> UOp:
    result: UOp = graph_rewrite(u, passes, bottom_up=bottom_up)
    return result


def sealed(name: str, dtype: DType, operands: Sequence[UOp]) -> UOp:
    """An operator on one or two operands that no rule knows; `called_name` gives the name."""
    # MULACC is an elementwise op that no rule of tinygrad's touches unless a renderer asks for it.
    # The mark is never constant, so that it is not folded as a*b+c either.
    mark = UOp(Ops.SPECIAL, dtype, (UOp.const(2, dtype),), name)
    return UOp(Ops.MULACC, dtype, (operands[0], operands[-1], mark))


SEALED = {
    Ops.ADD: "add",
    Ops.MUL: "mul",
    Ops.SUB: "sub",
    Ops.FDIV: "div",
    Ops.MAX: "maximum",
    Ops.NEG: "neg",
    Ops.RECIPROCAL: "reciprocal",
    Ops.EXP2: "exp2",
    Ops.LOG2: "log2",
    Ops.SIN: "sin",
    Ops.SQRT: "sqrt",
    Ops.TRUNC: "trunc",
    Ops.POW: "pow",
}
_LN2 = 0.6931471805599453


def _seal_one(u: UOp) -> UOp | None:
    if u.dtype not in dtypes.floats or all(is_constant(s) for s in u.src):
        return None
    if u.dtype in _HALVES:
        wide = UOp(u.op, dtypes.float32, tuple(s.cast(dtypes.float32) for s in u.src), u.arg)
        return wide.cast(u.dtype)
    name, operands = SEALED[u.op], u.src
    if u.op is Ops.MUL:
        negated = factor(u, -1.0)
        if negated is not None:
            name, operands = "neg", (negated,)
        elif u.src[1].op is Ops.RECIPROCAL:
            name, operands = "div", (u.src[0], u.src[1].src[0])
        elif u.src[0].op is Ops.RECIPROCAL:
            name, operands = "div", (u.src[1], u.src[0].src[0])
        else:
            for log2, c in (u.src, u.src[::-1]):
                if log2.op is Ops.LOG2 and equals(c, _LN2) and log2.shape == u.shape:
                    name, operands = "log", log2.src
    elif u.op is Ops.ADD and (right := factor(u.src[1], -1.0)) is not None:
        name, operands = "sub", (u.src[0], right)
    elif u.op is Ops.EXP2 and (power := factor(u.src[0], 1 / _LN2)) is not None:
        name, operands = "exp", (power,)
    operands = tuple(s if s.dtype in dtypes.weaks else s.cast(u.dtype) for s in operands)
    return sealed(name, u.dtype, operands)


def _seal_reduce(r: UOp) -> UOp | None:
    if r.dtype in _HALVES:
        wide = r.src[0].cast(dtypes.float32)
        return r.replace(dtype=dtypes.float32, src=(wide, *r.src[1:])).cast(r.dtype)
    if r.arg[0] is Ops.MAX and r.dtype in _KEYS:
        key = _KEYS[r.dtype]
        largest = r.replace(dtype=key, src=(_ordered(r.src[0]), *r.src[1:]))
        return _flipped(largest).bitcast(r.dtype)
    return None


# A maximum of floats as one of integers: NaN counts as the largest, and gcc vectorizes it.
_KEYS = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}


def _ordered(x: UOp) -> UOp:
    return _flipped(call("largest_nan", x).bitcast(_KEYS[x.dtype]))


def _flipped(bits: UOp) -> UOp:
    """Negative floats are in reverse order of their bits."""
    flipped: UOp = bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & bits.dtype.max)
    return flipped


_seal = PatternMatcher(
    [
        (UPat(tuple(SEALED), name="u"), _seal_one),
        (UPat(Ops.REDUCE, name="r"), _seal_reduce),
    ]
)


def _repeated(r: UOp) -> UOp | None:
    """A sum of n times the same float: tinygrad's is the product alone, which may be -0.0."""
    loops = r.src[1:]
    if r.arg[0] is not Ops.ADD or any(loop in r.src[0].ranges for loop in loops):
        return None
    if any(loop.src[0].op is not Ops.CONST for loop in loops):
        return None
    count = math.prod(int(loop.vmax) + 1 for loop in loops)
    product = sealed("mul", r.dtype, (r.src[0], UOp.const(float(count), r.dtype)))
    return sealed("add", r.dtype, (UOp.const(0.0, r.dtype), product))


repeated_sums = PatternMatcher(
    [
        (
            UPat(Ops.REDUCE, (dtypes.float32, dtypes.float64), (UPat(), UPat()), name="r",
                 allow_any_len=True),
            _repeated,
        )
    ]
)  # fmt: skip


@dataclass
class _Stages:
    uses: Counter[tuple[UOp, ...]]
    keep: Callable[[UOp], bool]


def _inline(ctx: _Stages, src: UOp, buf: UOp, idx: UOp) -> UOp | None:
    if ctx.uses[buf.src[1:]] > 1 and ctx.keep(src):
        return None
    return cast("UOp | None", remove_bufferize(src, buf, idx))


_inlining = PatternMatcher(
    [
        (
            UPat.var("src")
            .f(Ops.STAGE, allow_any_len=True, name="buf")
            .f(Ops.INDEX, allow_any_len=True, name="idx"),
            _inline,
        ),
        (UPat.var("x").store(UPat.var("x")), lambda x: UOp(Ops.NOOP)),  # noqa: ARG005
        (UPat(Ops.END, src=(UPat(Ops.NOOP, name="x"),), allow_any_len=True), lambda x: x),
    ]
)


def _accumulate(ctx: "itertools.count[int]", r: UOp) -> UOp:
    """A REDUCE as a scalar that is set before its loops, and added to inside them."""
    accumulator = UOp.placeholder_like(r, next(ctx), AddrSpace.REG)
    loops = r.src[1:]
    around = tuple(x for x in r.src[0].ranges if x not in loops)
    start = accumulator.after(*around).store(UOp.const(identity_element(r.arg[0], r.dtype)))
    running = accumulator.after(start, *loops)
    step = running.alu(r.arg[0], r.src[0])
    result: UOp = accumulator.after(running.store(step).end(*loops).replace(tag="mergeable"))
    return result


_accumulators = (
    PatternMatcher(
        [
            (UPat(Ops.REDUCE, src=(UPat(), UPat()), allow_any_len=True, name="r"), _accumulate),
            (UPat(Ops.SINK, name="sink"), merge_reduce_ends),
        ]
    )
    + pm_clean_up_group_sink
)
