"""Kernels of a device that tinygrad drives: from loops to source text, but for the arithmetic."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tinygrad.codegen import (
    ReduceContext,
    build_range_map,
    expander2,
    pm_add_local_buffers,
    pm_implicit_barriers,
    pm_reduce_local,
)
from tinygrad.codegen.decomp.dtype import pm_dtype_decomps
from tinygrad.codegen.gpudims import pm_add_gpudims
from tinygrad.codegen.late.coalesce import memory_coalescing
from tinygrad.uop.movement import mop_cleanup
from tinygrad.uop.ops import KernelInfo, ProgramInfo
from tinygrad.uop.weak import pm_commit_weak

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
    constant,
    dtypes,
)
from torch_tiny.uops.cascade import CHAIN, cascaded
from torch_tiny.uops.integers import long_arithmetic, plain_longs, spelled, wrapped
from torch_tiny.uops.passes import Hooks, Pass, Passes, always, linear, lowered
from torch_tiny.uops.rules import sym
from torch_tiny.uops.sealed import sealed_pattern
from torch_tiny.uops.threads import arranged


@dataclass(frozen=True)
class Source:
    """A kernel as text. Its parameters are PARAMs `slots`, in this order."""

    name: str
    text: str
    slots: tuple[int, ...]
    launch: tuple[int, ...]
    group: tuple[int, ...] | None


class Language(Protocol):
    """How operators are written in a kernel language, with {0} and {1} for operands."""

    def template(self, name: str, dtype: DType, /) -> str:
        """The text of a sealed operator on floats, such as "({0}+{1})"."""

    def integer(self, operator: str, dtype: DType, /) -> str | None:
        """Of an operator on integers; None where the language's own wraps around."""

    def rounded(self, dtype: DType, /) -> str | None:
        """The operator that rounds a float32 as a conversion to a smaller type should."""


def render(sink: UOp, renderer: Renderer, name: str, language: Language) -> Source:
    """From loops around a store to source text, as tinygrad does it but for the arithmetic."""
    sink = sink.replace(arg=KernelInfo(name=name))
    sink = lowered(sink, _hooks(renderer, name, language))
    info = ProgramInfo.from_sink(sink, renderer.target)
    uops = linear(sink)
    slots = tuple(u.arg.slot for u in uops if u.op is Ops.PARAM)
    launch, group = info.launch_dims({})
    return Source(info.function_name, renderer.render(uops), slots, launch, group)


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
    return Source(info.arg.function_name, text, slots, (1, 1, 1), (1, 1, 1))


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


def _hooks(renderer: Renderer, name: str, language: Language) -> Hooks:
    """Loops become threads, some are unrolled; sealed operators stay sealed until the end."""
    meaning, target = always(language), always(renderer)
    longs: Passes = (Pass("longs as calls", plain_longs + long_arithmetic),)
    return Hooks(
        renderer,
        shape=lambda sink: arranged(sink, renderer, name),
        casts=renderer.extra_matcher or _NO_RULES,
        begin=(Pass("rounding", _rounding, meaning),),
        reductions=(
            Pass("unroll", expander2, build_range_map),
            # Tiles of a product keep their sums in registers for longer.
            Pass(
                "sums in levels",
                lambda sink: cascaded(sink, lambda r: CHAIN if r.shape == () else _TILE_CHAIN),
            ),
            Pass("accumulators", mop_cleanup + pm_reduce_local, lambda _: ReduceContext()),
            Pass("shared memory", pm_add_local_buffers, lambda _: itertools.count(0)),
            Pass("threads", pm_add_gpudims, target),
        ),
        wide_loads=(
            Pass("simplify elements", sym),
            Pass("wide loads", lambda sink: memory_coalescing(sink, renderer)),
        ),
        types=(
            *(() if dtypes.int64 in renderer.supported_dtypes() else longs),
            Pass("types", pm_dtype_decomps + pm_commit_weak, lambda _: (set(), renderer)),
        ),
        text=(
            Pass("sealed operators", _opened, meaning),
            Pass("wrap around", lambda sink: wrapped(sink, language.integer)),
        ),
        end=(Pass("barriers", pm_implicit_barriers),),
    )


def _open(ctx: Language, u: UOp) -> UOp:
    if u.dtype in dtypes.ints:
        return spelled(u, u.arg, ctx.integer)
    return UOp(Ops.CUSTOM, u.dtype, u.src, ctx.template(u.arg, u.dtype))


def _differ(ctx: Language, u: UOp) -> UOp | None:
    if u.src[0].dtype not in dtypes.floats or u.src[0] is u.src[1]:
        return None
    # Half types are bits in some languages, and those of -0 are not those of 0.
    src = tuple(s.cast(dtypes.float32) if s.dtype.itemsize == 2 else s for s in u.src)
    return UOp(Ops.CUSTOM, dtypes.bool, src, ctx.template("differ", src[0].dtype))


def _convert(ctx: Language, x: UOp) -> UOp:
    """What no integer is near becomes the lowest one, as x86 does it; languages leave it open."""
    x = x.cast(dtypes.float32) if x.dtype.itemsize == 2 else x
    return UOp(Ops.CUSTOM, dtypes.int32, (x,), ctx.template("integer", x.dtype))


# NaN differs from everything, which not every language's != says.
_opened = PatternMatcher(
    [
        (sealed_pattern(), _open),
        (UPat(Ops.CMPNE, name="u"), _differ),
        (UPat(Ops.CAST, dtypes.int32, (UPat.var("x", dtypes.floats),)), _convert),
    ]
)


def _round(ctx: Language, u: UOp, x: UOp) -> UOp | None:
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
        return constant(u.arg, dtypes.float32)
    if u.op is Ops.CAST:
        return src[0].cast(dtypes.float32)
    if u.op is Ops.PARAM:
        return buffer_param(u.arg.slot, dtypes.float32, u.max_numel())
    return UOp(u.op, dtypes.float32, src, u.arg)


_NO_RULES = PatternMatcher([])
_TILE_CHAIN = 128
