"""tinygrad's schedule: from values to kernels, each of them loops around one store."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tinygrad.helpers import Context
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
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat, graph_rewrite

from torch_tiny.uops.expressions import new_numbers
from torch_tiny.uops.merge import flatten_ranges
from torch_tiny.uops.reductions import repeated_sums
from torch_tiny.uops.rules import load_collapse, reduce_simplify, sym, symbolic

_MOST_WRITTEN_OUT = 100  # UOps of a value that is used several times


def schedule(sink: UOp, keep: Callable[[UOp], bool], most_buffers: int = 0) -> tuple[UOp, ...]:
    """CALL(SINK of loops around one STORE, buffers...)s in order.

    keep(value): whether a value that is used several times is worth storing.
    most_buffers: how many a kernel may have, where there is a limit.
    """
    sink = graph_rewrite(sink, pm_mops + earliest_rewrites, bottom_up=True)
    sink = run_rangeify(sink)
    staged = (u.src[0] for u in sink.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.STAGE)
    uses = Counter(stage.src[1:] for stage in staged)  # its loops are what identifies a STAGE
    passes = symbolic + repeated_sums + reduce_simplify + pm_const_buffer_folding + _inlining
    sink = graph_rewrite(sink, passes, ctx=_Stages(uses, keep))
    if most_buffers:
        limit = LimitBufsContext(range_idx=new_numbers(sink))
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
    sink = graph_rewrite(sink, load_collapse)
    return cast(UOp, graph_rewrite(sink, sym + flatten_ranges))


# --- what is stored ---


@dataclass
class _Stages:
    uses: Counter[tuple[UOp, ...]]
    keep: Callable[[UOp], bool]


def _inline(ctx: _Stages, src: UOp, buf: UOp, idx: UOp) -> UOp | None:
    if ctx.uses[buf.src[1:]] > 1 and (_is_large(src) or ctx.keep(src)):
        return None
    return cast("UOp | None", remove_bufferize(src, buf, idx))


def _is_large(value: UOp) -> bool:
    """Written out in several places, and those again, it would double with each step."""
    return len(value.toposort(gate=lambda u: u.op is not Ops.STAGE)) > _MOST_WRITTEN_OUT


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
