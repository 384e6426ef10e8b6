"""From loops and REDUCEs to a list of UOps: tinygrad's passes in its order, with ours between them.

The list is one for all targets. What differs is in a target's Hooks: how it shapes loops, and the
passes that only it has.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tinygrad.codegen import (
    devectorizer2,
    ew_devectorizer,
    line_rewrite,
    pm_add_loads,
    pm_cast_float_alu,
    pm_casted_consts,
    pm_expand_broadcast,
    pm_linearize_cleanups,
)
from tinygrad.codegen.decomp.op import get_late_rewrite_patterns, get_simplifying_rewrite_patterns
from tinygrad.codegen.late.linearizer import CFGContext, linearize, pm_add_control_flow
from tinygrad.codegen.simplify import pm_reduce_unparented, pm_split_ranges
from tinygrad.renderer import Renderer
from tinygrad.uop.movement import mop_cleanup
from tinygrad.uop.ops import PatternMatcher, UOp, graph_rewrite
from tinygrad.uop.symbolic import pm_move_where_on_load, pm_remove_invalid
from tinygrad.uop.weak import pm_cast_weak, pm_commit_weak, pm_lower_index_dtype

from torch_tiny.uops.merge import flatten_ranges, merge_ranges, split_ends
from torch_tiny.uops.reductions import accumulators, loops_apart, repeated_sums
from torch_tiny.uops.rules import move_gates, simpler_indices, sym, symbolic, symbolic_simple
from torch_tiny.uops.sealed import sealed_gates


@dataclass(frozen=True)
class Pass:
    """Rules, or a function of the whole kernel. context(kernel): what the rules are told."""

    name: str
    rules: PatternMatcher | Callable[[UOp], UOp]
    context: Callable[[UOp], Any] = lambda _: None
    bottom_up: bool = False
    walk: bool = False

    def __call__(self, sink: UOp) -> UOp:
        if not isinstance(self.rules, PatternMatcher):
            return self.rules(sink)
        context, up, walk = self.context(sink), self.bottom_up, self.walk
        return cast(UOp, graph_rewrite(sink, self.rules, ctx=context, bottom_up=up, walk=walk))


Passes = tuple[Pass, ...]


@dataclass(frozen=True)
class Hooks:
    """What a target does its own way. Without the optional ones it has loops, and no threads."""

    renderer: Renderer
    """Which operators and types there are."""
    shape: Callable[[UOp], UOp]
    """Rearranges the loops once they are merged where possible."""
    casts: PatternMatcher
    """Of the last rewrite: how types that are only stored are converted."""
    begin: Passes = ()
    reductions: Passes = (
        Pass("accumulators", mop_cleanup + accumulators, lambda _: itertools.count()),
    )
    """From REDUCEs to loops that accumulate, and from loops to threads."""
    wide_loads: Passes = ()
    types: Passes = ()
    """Of types that the target has not."""
    text: Passes = ()
    """From operators to text of its language."""
    end: Passes = ()


def passes(hooks: Hooks) -> Passes:
    """What is done to a kernel, from top to bottom."""
    target = always(hooks.renderer)
    operators = tuple(hooks.renderer.code_for_op)
    early = symbolic_simple + get_simplifying_rewrite_patterns(operators)
    late = early + get_late_rewrite_patterns(operators, False)
    final = pm_commit_weak + pm_cast_weak + late + hooks.casts + split_ends + pm_remove_invalid
    return (
        *hooks.begin,
        # Loops
        Pass("split loops", pm_split_ranges + flatten_ranges, _notes),
        Pass("simplify loops", sym + _loops),
        Pass("merge loops", flatten_ranges + merge_ranges, _notes),
        Pass("shape loops", hooks.shape),
        Pass("simplify shaped loops", sym + pm_move_where_on_load + _loops),
        *hooks.reductions,
        Pass("loops apart", loops_apart),
        # Loads, and one number at a time
        Pass("loads", symbolic_simple + pm_expand_broadcast + pm_add_loads),
        Pass("elements", symbolic_simple + devectorizer2 + simpler_indices, target),
        *hooks.wide_loads,
        Pass("elements of wide loads", symbolic_simple + ew_devectorizer, bottom_up=True),
        Pass("simplify places", sym + simpler_indices + sealed_gates),
        # Operators and types that the target has
        Pass("types of places", symbolic_simple + pm_lower_index_dtype + simpler_indices, _notes),
        Pass("simplify typed", symbolic),
        Pass("types of functions", pm_cast_float_alu),
        Pass("early operators", early + pm_commit_weak),
        *hooks.types,
        Pass("late operators", late, target),
        Pass("gates", move_gates),
        *hooks.text,
        Pass("final", final, target),
        Pass("constants", pm_casted_consts, walk=True),
        *hooks.end,
        Pass("control flow", pm_add_control_flow, CFGContext, bottom_up=True),
    )


def always(told: Any) -> Callable[[UOp], Any]:
    """A context that is the same for all kernels."""
    return lambda _: told


def lowered(sink: UOp, hooks: Hooks) -> UOp:
    """A kernel after all passes."""
    for one in passes(hooks):
        sink = one(sink)
    return sink


def linear(sink: UOp) -> list[UOp]:
    """A lowered kernel line by line."""
    return line_rewrite(linearize(sink), pm_linearize_cleanups)


def lower_kernel(sink: UOp, hooks: Hooks) -> list[UOp]:
    """All of it: from loops around a store to lines."""
    return linear(lowered(sink, hooks))


# A sum over a loop that its terms do not depend on is a product: before loops are unrolled.
_loops = flatten_ranges + repeated_sums + pm_reduce_unparented


def _notes(_: UOp) -> dict[UOp, UOp]:
    """Where the rules of a pass keep what they have found."""
    return {}
