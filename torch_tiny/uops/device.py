"""A device that tinygrad drives: its memory, and its kernels from loops to source text."""

import itertools
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tinygrad.codegen import (
    ReduceContext,
    build_range_map,
    devectorizer2,
    ew_devectorizer,
    expander2,
    line_rewrite,
    pm_add_loads,
    pm_add_local_buffers,
    pm_cast_float_alu,
    pm_casted_consts,
    pm_expand_broadcast,
    pm_implicit_barriers,
    pm_linearize_cleanups,
    pm_reduce_local,
)
from tinygrad.codegen.decomp.dtype import pm_dtype_decomps
from tinygrad.codegen.decomp.op import get_late_rewrite_patterns, get_simplifying_rewrite_patterns
from tinygrad.codegen.gpudims import pm_add_gpudims
from tinygrad.codegen.late.coalesce import (
    memory_coalescing,
)
from tinygrad.codegen.late.linearizer import (
    CFGContext,
    linearize,
    pm_add_control_flow,
)
from tinygrad.codegen.simplify import (
    pm_load_collapse,
    pm_reduce_unparented,
    pm_split_ranges,
)
from tinygrad.device import CompileError, Device, TinyELF
from tinygrad.schedule.rangeify import pm_mops
from tinygrad.uop.movement import mop_cleanup
from tinygrad.uop.ops import KernelInfo, ProgramInfo
from tinygrad.uop.symbolic import (
    pm_move_where_on_load,
    pm_remove_invalid,
    sym,
    symbolic,
    symbolic_simple,
)
from tinygrad.uop.weak import pm_cast_weak, pm_commit_weak, pm_lower_index_dtype

from torch_tiny.uops import (
    DType,
    Ops,
    PatternMatcher,
    Renderer,
    UOp,
    UPat,
    buffer_param,
    call,
    called_name,
    dtypes,
    graph_rewrite,
    move_gates,
    repeated_sums,
    simpler_indices,
    valid_operands,
)
from torch_tiny.uops.cascade import CHAIN, cascaded
from torch_tiny.uops.integers import Spelling, long_arithmetic, plain_longs, spelled, wrapped
from torch_tiny.uops.merge import flatten_ranges, merge_ranges, split_ends
from torch_tiny.uops.threads import arranged

__all__ = ["Source", "narrowed", "open_device", "program", "render", "render_linear"]


@dataclass(frozen=True)
class Source:
    """A kernel as text. Its parameters are PARAMs `slots`, in this order."""

    name: str
    text: str
    slots: tuple[int, ...]
    launch: tuple[int, ...]
    group: tuple[int, ...] | None
    calls: frozenset[str]
    """Names of the sealed operators that it calls."""


def open_device(name: str) -> Any:
    """tinygrad's device; raises what it raises where there is none."""
    return Device[name]


def program(device: Any, renderer: Any, name: str, text: str, buffers: int) -> Any:
    """What runs a kernel: program(*opaque_buffers, global_size=..., local_size=...).

    A RuntimeError has what the device's compiler says.
    """
    signature = tuple((None, i, dtypes.uint8, (1,)) for i in range(buffers))
    try:
        code = renderer.compiler.compile(text)
    except (CompileError, subprocess.CalledProcessError) as error:
        raise RuntimeError(str(error)) from error
    return device.runtime(TinyELF(code, name, renderer.target, signature))


def render(
    sink: UOp,
    renderer: Renderer,
    name: str,
    template: Callable[[str, DType], str],
    integer: Spelling,
    rounded: Callable[[DType], str | None],
) -> Source:
    """From loops around a store to source text, as tinygrad does it but for the arithmetic.

    template: the text of a sealed operator, such as "({0}+{1})"; integer: of others; rounded: the
    operator that rounds a float32 as a conversion to a smaller type should.
    """
    opening = _Opening(template, integer, rounded)
    sink = _lowered(sink.replace(arg=KernelInfo(name=name)), renderer, opening)
    info = ProgramInfo.from_sink(sink, renderer.target)
    uops = line_rewrite(linearize(sink), pm_linearize_cleanups)
    text = renderer.render(uops)
    slots = tuple(u.arg.slot for u in uops if u.op is Ops.PARAM)
    launch, group = info.launch_dims({})
    return Source(info.function_name, text, slots, launch, group, frozenset(opening.calls))


def render_linear(uops: Sequence[UOp], renderer: Renderer, name: str, uniform: str) -> Source:
    """Source text of a kernel that is a list of UOps already, of one thread of a group.

    uniform: the text of a load of {0}, a buffer of one element, that is the same for all threads.
    """
    new: dict[UOp, UOp] = {}

    def written(u: UOp) -> UOp:
        if u not in new:
            src = u.src if u.op in (Ops.PARAM, Ops.BUFFER) else tuple(written(s) for s in u.src)
            if u.op is Ops.CONST:
                new[u] = UOp.cconst(u.arg, u.dtype)
            elif u.op in _PLAIN:
                new[u] = UOp(Ops.CUSTOM, u.dtype, src, _PLAIN[u.op])
            else:
                new[u] = u.replace(src=src, arg=uniform if u.op is Ops.CUSTOM else u.arg)
        return new[u]

    out: list[UOp] = []
    for u in uops:
        one = written(u)
        out += [s for s in one.src if s.op is Ops.CAST and s.src[0].op is Ops.CONST]
        out.append(one)
    # A load that is used once would be written where it is used, after what was stored meanwhile.
    out.append(UOp(Ops.NOOP, src=tuple(u for u in out if u.op is Ops.LOAD)))
    info = UOp.sink(arg=KernelInfo(name=name))
    text = renderer.render([*out, info])
    slots = tuple(u.arg.slot for u in out if u.op is Ops.PARAM)
    return Source(info.arg.function_name, text, slots, (1, 1, 1), (1, 1, 1), frozenset())


_PLAIN = {Ops.FDIV: "({0}/{1})", Ops.NEG: "(- {0})"}


def narrowed(values: Sequence[UOp]) -> list[UOp]:
    """The same with float32 in place of float64, for devices that have none."""
    new: dict[UOp, UOp] = {}
    sink = UOp.sink(*values)
    for u in sink.toposort():
        src = tuple(new[s] for s in u.src)
        new[u] = _narrow(u, src) if u.dtype == dtypes.float64 else u.replace(src=src)
    return list(new[sink].src)


# --- how it is done ---


@dataclass
class _Opening:
    template: Callable[[str, DType], str]
    integer: Spelling
    rounded: Callable[[DType], str | None]
    calls: set[str] = field(default_factory=set)


def _open(ctx: _Opening, u: UOp) -> UOp | None:
    called = called_name(u)
    if called is None:
        return None
    if u.dtype in dtypes.ints:
        return spelled(u, called, ctx.integer)
    ctx.calls.add(called)
    return UOp(Ops.CUSTOM, u.dtype, u.src[:2], ctx.template(called, u.dtype))


def _differ(ctx: _Opening, u: UOp) -> UOp | None:
    if u.src[0].dtype not in dtypes.floats or u.src[0] is u.src[1]:
        return None
    # Half types are bits in some languages, and those of -0 are not those of 0.
    src = tuple(s.cast(dtypes.float32) if s.dtype.itemsize == 2 else s for s in u.src)
    return UOp(Ops.CUSTOM, dtypes.bool, src, ctx.template("differ", src[0].dtype))


def _convert(ctx: _Opening, x: UOp) -> UOp:
    """What no integer is near becomes the lowest one, as x86 does it; languages leave it open."""
    x = x.cast(dtypes.float32) if x.dtype.itemsize == 2 else x
    return UOp(Ops.CUSTOM, dtypes.int32, (x,), ctx.template("integer", x.dtype))


# NaN differs from everything, which not every language's != says.
_opened = PatternMatcher(
    [
        (UPat(Ops.MULACC, name="u"), _open),
        (UPat(Ops.CMPNE, name="u"), _differ),
        (UPat(Ops.CAST, dtypes.int32, (UPat.var("x", dtypes.floats),)), _convert),
    ]
)


def _round(ctx: _Opening, u: UOp, x: UOp) -> UOp | None:
    name = ctx.rounded(u.dtype)
    if name is None or called_name(x) == name:
        return None
    return call(name, x.cast(dtypes.float32)).cast(u.dtype)


# Where a type has no instructions, or a compiler takes floats for real numbers.
_rounding = PatternMatcher(
    [(UPat(Ops.CAST, (dtypes.float16, dtypes.bfloat16), (UPat.var("x"),), name="u"), _round)]
)


def _narrow(u: UOp, src: tuple[UOp, ...]) -> UOp:
    if u.op is Ops.CONST:
        return cast(UOp, UOp.const(u.arg, dtypes.float32))
    if u.op is Ops.CAST:
        return src[0].cast(dtypes.float32)
    if u.op is Ops.PARAM:
        return buffer_param(u.arg.slot, dtypes.float32, u.max_numel())
    return UOp(u.op, dtypes.float32, src, u.arg)


def _lowered(sink: UOp, renderer: Renderer, opening: _Opening) -> UOp:
    """tinygrad's full_rewrite_to_sink, in which sealed operators stay sealed until the end."""
    sink = graph_rewrite(sink, _rounding, ctx=opening)
    sink = graph_rewrite(sink, pm_mops, bottom_up=True)
    sink = graph_rewrite(sink, pm_load_collapse)
    sink = graph_rewrite(sink, pm_split_ranges + flatten_ranges, ctx={})
    # Before loops are unrolled: a sum over a loop that its terms do not depend on is a product.
    sink = graph_rewrite(sink, sym + flatten_ranges + repeated_sums + pm_reduce_unparented)
    sink = graph_rewrite(sink, flatten_ranges + merge_ranges, ctx={})
    sink = arranged(sink, renderer, sink.arg.name)
    sink = graph_rewrite(
        sink,
        sym + pm_move_where_on_load + flatten_ranges + repeated_sums + pm_reduce_unparented,
    )
    sink = cascaded(graph_rewrite(sink, expander2, ctx=build_range_map(sink)), _block)
    sink = graph_rewrite(sink, mop_cleanup + pm_reduce_local, ctx=ReduceContext())
    sink = graph_rewrite(sink, pm_add_local_buffers, ctx=itertools.count(0))
    sink = _with_threads(sink, renderer)
    sink = graph_rewrite(sink, symbolic_simple + pm_expand_broadcast + pm_add_loads)
    sink = graph_rewrite(sink, symbolic_simple + devectorizer2 + simpler_indices, ctx=renderer)
    sink = graph_rewrite(sink, sym)
    sink = memory_coalescing(sink, renderer)
    sink = graph_rewrite(sink, symbolic_simple + ew_devectorizer, bottom_up=True)
    sink = graph_rewrite(sink, sym + simpler_indices + _gates)
    sink = graph_rewrite(sink, symbolic_simple + pm_lower_index_dtype + simpler_indices, ctx={})
    sink = graph_rewrite(sink, symbolic)
    sink = graph_rewrite(sink, pm_cast_float_alu)
    operators = tuple(renderer.code_for_op)
    early = symbolic_simple + get_simplifying_rewrite_patterns(operators)
    late = early + get_late_rewrite_patterns(operators, False)
    sink = graph_rewrite(sink, early)
    if dtypes.int64 not in renderer.supported_dtypes():
        sink = graph_rewrite(sink, plain_longs + long_arithmetic)
    sink = graph_rewrite(sink, pm_dtype_decomps + pm_commit_weak, ctx=(set(), renderer))
    sink = graph_rewrite(sink, late, ctx=renderer)
    sink = graph_rewrite(sink, move_gates)
    sink = graph_rewrite(sink, valid_operands)
    sink = wrapped(graph_rewrite(sink, _opened, ctx=opening), opening.integer)
    own = renderer.extra_matcher or PatternMatcher([])
    final = pm_commit_weak + pm_cast_weak + late + own + split_ends + pm_remove_invalid
    sink = graph_rewrite(sink, final, ctx=renderer)
    sink = graph_rewrite(sink, pm_casted_consts, walk=True)
    sink = graph_rewrite(sink, pm_implicit_barriers)
    control = CFGContext(sink)
    return cast(UOp, graph_rewrite(sink, pm_add_control_flow, ctx=control, bottom_up=True))


def _block(reduce: UOp) -> int:
    """Tiles of a product keep their sums in registers for longer."""
    return CHAIN if reduce.shape == () else _TILE_CHAIN


_TILE_CHAIN = 128


def _gate_outside(u: UOp) -> UOp | None:
    """tinygrad's own rule for its operators: a place in memory is a choice of one and of none."""
    for operand in u.src[:2]:
        if operand.op is Ops.WHERE and operand.src[2].is_invalid:
            gate, inside, none = operand.src
            src = tuple(inside if s is operand else s for s in u.src)
            return gate.where(u.replace(src=src), none)
    return None


_gates = PatternMatcher([(UPat(Ops.MULACC, dtypes.ints, name="u"), _gate_outside)])


def _with_threads(sink: UOp, renderer: Renderer) -> UOp:
    """Loops become threads. A kernel with SPECIALs would count as done, and the marks are some."""
    marks = {
        u: UOp(Ops.NOOP, u.dtype, (), ("mark", u.arg, u.src))
        for u in sink.toposort()
        if u.op is Ops.SPECIAL
    }
    sink = graph_rewrite(sink.substitute(marks), pm_add_gpudims, ctx=renderer)
    return cast(UOp, sink.substitute({to: of for of, to in marks.items()}))
