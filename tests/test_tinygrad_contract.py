"""What each of tinygrad's passes is relied upon for: another tinygrad says what it broke."""

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinygrad.codegen import (
    ReduceContext,
    build_range_map,
    devectorizer2,
    ew_devectorizer,
    expander2,
    line_rewrite,
    merge_reduce_ends,
    pm_add_loads,
    pm_add_local_buffers,
    pm_cast_float_alu,
    pm_casted_consts,
    pm_expand_broadcast,
    pm_implicit_barriers,
    pm_linearize_cleanups,
    pm_reduce_local,
    simplify,
)
from tinygrad.codegen.decomp.dtype import pm_dtype_decomps
from tinygrad.codegen.decomp.op import get_late_rewrite_patterns, get_simplifying_rewrite_patterns
from tinygrad.codegen.gpudims import pm_add_gpudims
from tinygrad.codegen.late.coalesce import memory_coalescing, simplify_valid_load
from tinygrad.codegen.late.gater import move_where_load, pm_move_gates_from_index
from tinygrad.codegen.late.linearizer import CFGContext, linearize, pm_add_control_flow
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.codegen.opt.postrange import KernelOptError, Scheduler
from tinygrad.codegen.simplify import (
    count_divmod,
    pm_reduce_simplify,
    pm_reduce_unparented,
    pm_simplify_ranges,
    pm_split_ranges,
    simplify_merge_adjacent,
)
from tinygrad.dtype import Invalid
from tinygrad.helpers import Context
from tinygrad.renderer.cstyle import (
    OpenCLRenderer,
    create_non_native_float_pats,
    pm_manual_bf16_cast,
)
from tinygrad.renderer.wgsl import WGSLRenderer
from tinygrad.schedule import create_schedule
from tinygrad.schedule.indexing import apply_movement_op, run_rangeify
from tinygrad.schedule.rangeify import (
    BufferizeOpts,
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
from tinygrad.uop import symbolic as algebra
from tinygrad.uop.movement import mop_cleanup
from tinygrad.uop.ops import (
    KernelInfo,
    ProgramInfo,
    RewriteContext,
    _rebuild_dtype,
    _substitute,
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

from torch_tiny.engine import c_renderer
from torch_tiny.uops import (
    AddrSpace,
    AxisType,
    GroupOp,
    Ops,
    PatternMatcher,
    Target,
    UOp,
    buffer_param,
    called_name,
    compiling,
    dtypes,
    graph_rewrite,
    rewriting,
    rules,
    sink_of,
)
from torch_tiny.uops import rules as our_rules
from torch_tiny.uops.passes import Hooks, lower_kernel, passes
from torch_tiny.uops.rules import exchanged, half_casts, load_collapse
from torch_tiny.uops.scheduling import flatten_kernel, schedule
from torch_tiny.uops.sealed import sealed, sealed_gates

F32, I32 = dtypes.float32, dtypes.int32
X, Y, PLACES = buffer_param(0, F32, 12), buffer_param(1, F32, 12), buffer_param(2, I32, 3)
CL = OpenCLRenderer(Target("CL"))
INVALID = UOp.const(Invalid)
OPERATORS = tuple(c_renderer.Target.code_for_op)
# All rule sets that kernels go through while operators are sealed, with what they are told.
WHILE_SEALED = {
    "symbolic_simple": (symbolic_simple, lambda: None),
    "symbolic": (symbolic, lambda: None),
    "sym": (sym, lambda: None),
    "mop_cleanup": (mop_cleanup, lambda: None),
    "pm_cast_float_alu": (pm_cast_float_alu, lambda: None),
    "pm_lower_index_dtype": (pm_lower_index_dtype, dict),
    "early": (get_simplifying_rewrite_patterns(OPERATORS), lambda: None),
    "late": (get_late_rewrite_patterns(OPERATORS, False), lambda: CL),
    "halves": (half_casts, lambda: None),
    "types": (pm_dtype_decomps, lambda: (set(), CL)),
}


def loop(length: int, number: int = 0, kind: AxisType = AxisType.WEAK) -> UOp:
    return UOp.range(length, number, kind)


def total(value: UOp, *loops: UOp, by: Ops = Ops.ADD) -> UOp:
    return value.reduce(*loops, arg=(by, 0))


def count(u: UOp) -> Counter[Ops]:
    return Counter(x.op for x in u.toposort())


def copied(i: UOp, value: UOp | None = None) -> UOp:
    return sink_of(Y.index(i).store(X.index(i) if value is None else value).end(i))


# --- the operator that no rule knows ---


@pytest.mark.parametrize("name", WHILE_SEALED)
@pytest.mark.parametrize("operands", [1, 2])
def test_sealed_operators_stay_as_they_are(name: str, operands: int) -> None:
    rules, told = WHILE_SEALED[name]
    for operand in (UOp.const(2.0, F32), X.index(loop(12)), X.index(UOp.const(0))):
        one = sealed("name", F32, (operand, UOp.const(1.0, F32))[:operands])
        kept = graph_rewrite(sink_of(one), rules, ctx=told()).src[0]
        assert called_name(kept) == "name" and kept.dtype == F32 and len(kept.src) == operands


def test_sealed_operators_are_elementwise() -> None:
    assert Ops.MULACC in GroupOp.Broadcastable & GroupOp.Elementwise & GroupOp.Ternary
    assert Ops.MULACC not in GroupOp.Unary | GroupOp.Binary
    one = sealed("name", F32, (X.reshape((3, 4)), Y.shrink(((0, 4),))))
    assert one.shape == (3, 4)
    spread = graph_rewrite(one, pm_expand_broadcast)
    assert all(s.shape == (3, 4) for s in spread.src) and called_name(spread) == "name"
    two = sealed("name", F32, (UOp.const((1.0, 2.0), F32), UOp.const((3.0, 4.0), F32)))
    apart = graph_rewrite(two, symbolic_simple + ew_devectorizer, bottom_up=True)
    assert apart.op is Ops.STACK and [called_name(s) for s in apart.src] == ["name", "name"]
    assert all(s.dtype == F32 and s.shape == () for s in apart.src)


def test_types_of_sealed_operators_are_those_of_their_operands() -> None:
    weak = sealed("name", I32, (PLACES.index(loop(3)), loop(3)))
    typed = graph_rewrite(weak, pm_commit_weak)
    assert [s.dtype for s in typed.src] == [I32, I32]
    assert _rebuild_dtype(weak, (INVALID, weak.src[0])) == I32


@pytest.mark.parametrize("rules", [rules.symbolic_simple, rules.symbolic, rules.sym])
def test_sealed_operators_of_what_nobody_reads(rules: PatternMatcher) -> None:
    """They go in the pass that finds so: without an operand they would have no type."""
    i = loop(12)
    nothing = UOp.const(False).where(i, INVALID).cast(F32)
    assert graph_rewrite(sealed("name", F32, (nothing,)), rules).is_invalid
    assert graph_rewrite(sealed("name", F32, (X.index(i), nothing)), rules).is_invalid
    place = sealed("add", I32, ((i < 5).where(i, INVALID), PLACES.index(i)))
    gated = graph_rewrite(place, rules + sealed_gates)
    assert gated.op is Ops.WHERE and called_name(gated.src[1]) == "add"


def test_nothing_is_stored_of_what_nobody_reads() -> None:
    i = loop(12)
    stored = sink_of(Y.index(i).store(sealed("neg", F32, (INVALID.cast(F32),))).end(i))
    assert not count(flatten_kernel(stored))[Ops.STORE]


# --- tinygrad's algebra ---


def test_symbolic() -> None:
    i = loop(12)
    assert graph_rewrite((i * 4 + 3) // 4, symbolic) is i
    assert graph_rewrite(i % 12, symbolic) is i
    assert graph_rewrite(i < 12, symbolic).arg is True
    gated = (i < 5).where(i, INVALID)
    assert graph_rewrite(gated + 1, symbolic_simple).op is Ops.WHERE
    assert graph_rewrite(INVALID + i, symbolic_simple).is_invalid
    assert graph_rewrite((i + 1) * 4, sym) is graph_rewrite(i * 4 + 4, sym)
    assert algebra.symbolic is symbolic


def test_no_value_matters_only_where_it_decides() -> None:
    """tinygrad's own rule would have no value of a choice that never looks at it."""
    inside, truth = loop(12) < 5, UOp.variable("truth", 0, 1, dtypes.bool)
    none = inside.where(truth, INVALID)
    assert graph_rewrite(inside & none, our_rules.symbolic).get_valid().arg is True
    assert graph_rewrite(inside.logical_not() | none, our_rules.symbolic).get_valid().arg is True
    assert graph_rewrite(truth & none, our_rules.symbolic).op is Ops.WHERE


def test_operands_in_which_no_value_stands_where_a_number_does_have_no_order() -> None:
    of_none, of_number = (sealed("name", dtypes.weakint, (x,)) for x in (INVALID, UOp.const(3)))
    for kept in (of_none + of_number, of_number + of_none):
        assert graph_rewrite(kept, our_rules._ordered(algebra.commutative)) is kept
    i = loop(12)
    assert graph_rewrite(UOp.const(3) + i, our_rules.symbolic) is graph_rewrite(i + 3, symbolic)


def test_invalid_gate() -> None:
    found = PatternMatcher([(invalid_gate, lambda cond, x, i: UOp(Ops.NOOP, src=(cond, x, i)))])
    i = loop(12)
    assert graph_rewrite((i < 5).where(i, INVALID), found).src == (i < 5, i, INVALID)


def test_pm_remove_invalid() -> None:
    i = loop(12)
    assert graph_rewrite((i < 5).where(i, INVALID), pm_remove_invalid).src[2].arg == 0


def test_pm_clean_up_group_sink() -> None:
    one, two = copied(loop(12)).src[0], copied(loop(12, 1)).src[0]
    nested = sink_of(UOp.group(UOp.group(one), two))
    assert graph_rewrite(nested, pm_clean_up_group_sink).src == (one, two)


def test_pm_move_where_on_load() -> None:
    i = loop(12)
    moved = graph_rewrite((i < 5).where(X.index(i), 0.0), symbolic + pm_move_where_on_load)
    assert moved.op is Ops.INDEX and moved.src[1].get_valid() is (i < 5)


def test_pm_mops_and_mop_cleanup() -> None:
    i, j = loop(3), loop(4, 1)
    turned = X.reshape((3, 4)).permute((1, 0)).index(j, i)
    assert graph_rewrite(turned, pm_mops, bottom_up=True) is X.index(i * 4 + j)
    assert graph_rewrite(X.reshape((3, 4)).reshape((12,)), mop_cleanup) is X


# --- types ---


def test_pm_commit_weak_and_pm_cast_weak() -> None:
    value = PLACES.index(loop(3))
    assert graph_rewrite(value + 1, pm_commit_weak).src[1].dtype == I32
    stored = graph_rewrite(PLACES.index(loop(3)).store(UOp.const(1)), pm_commit_weak)
    assert stored.src[1].dtype == I32
    assert graph_rewrite(UOp.const(1).cast(I32), pm_cast_weak).op is Ops.CONST


def test_pm_lower_index_dtype() -> None:
    lowered = graph_rewrite(copied(loop(12)), symbolic_simple + pm_lower_index_dtype, ctx={})
    assert {u.dtype for u in lowered.toposort() if u.op is Ops.RANGE} == {I32}
    long = buffer_param(0, F32, 1 << 33).index(loop(1 << 33))
    wide = graph_rewrite(sink_of(long), symbolic_simple + pm_lower_index_dtype, ctx={})
    assert {u.dtype for u in wide.toposort() if u.op is Ops.RANGE} == {dtypes.int64}


def test_pm_cast_float_alu() -> None:
    root = graph_rewrite(UOp(Ops.SQRT, F32, (PLACES.index(loop(3)),)), pm_cast_float_alu)
    assert root.src[0].dtype == F32


def test_pm_casted_consts() -> None:
    one = graph_rewrite(X.index(loop(12)) + UOp.const(1.0, F32), pm_casted_consts, walk=True)
    assert one.src[1].op is Ops.CAST and one.src[1].src[0].arg == 1.0


def test_create_non_native_float_pats_and_pm_manual_bf16_cast() -> None:
    halves = buffer_param(0, dtypes.bfloat16, 4).index(loop(4)).load()
    wide = create_non_native_float_pats((dtypes.bfloat16,))
    added = graph_rewrite(halves + halves, wide)
    assert added.op is Ops.CAST and added.src[0].op is Ops.ADD and added.src[0].dtype == F32
    assert count(graph_rewrite(added, wide + pm_manual_bf16_cast))[Ops.BITCAST]


def test_pm_dtype_decomps() -> None:
    """64 bits as two words, and nothing where a device has them."""
    longs = buffer_param(0, dtypes.int64, 4)
    value = longs.index(UOp.const(1, I32)).load() + longs.index(UOp.const(0, I32)).load()
    stored = sink_of(longs.index(UOp.const(0, I32)).store(value))
    words = graph_rewrite(stored, pm_dtype_decomps, ctx=(set(), WGSLRenderer(Target("WEBGPU"))))
    assert not any(u.dtype == dtypes.int64 for u in words.toposort())
    assert graph_rewrite(stored, pm_dtype_decomps, ctx=(set(), CL)) is stored


# --- operators ---


def test_get_simplifying_rewrite_patterns() -> None:
    value = PLACES.index(loop(3)).load()
    early = symbolic_simple + get_simplifying_rewrite_patterns(OPERATORS)
    floor = graph_rewrite(value // 3, early + pm_commit_weak)
    assert not count(floor)[Ops.FLOORDIV] and count(floor)[Ops.CDIV]
    assert count(graph_rewrite(value % 8, early))[Ops.AND]
    assert not count(graph_rewrite(value.maximum(value + 1), early))[Ops.MAX]


def test_get_late_rewrite_patterns() -> None:
    value = PLACES.index(loop(3)).load()
    late = get_late_rewrite_patterns(OPERATORS, False)
    assert graph_rewrite(value * 8, late, ctx=CL).op is Ops.SHL
    assert graph_rewrite(value * -1, late, ctx=CL).op is Ops.NEG
    assert Ops.MULACC not in OPERATORS, "or rules would make some"
    place = loop(1000).cast(I32)
    assert not count(graph_rewrite(place.alu(Ops.CDIV, place.const_like(7)), late, ctx=CL))[
        Ops.CDIV
    ]


# --- loops ---


def test_pm_split_ranges() -> None:
    i = loop(12)
    split = graph_rewrite(copied(i, X.index(i % 4)), pm_split_ranges, ctx={})
    ranges = [u for u in split.toposort() if u.op is Ops.RANGE]
    assert sorted(int(r.vmax) + 1 for r in ranges) == [3, 4]
    assert {r.arg[:-1] for r in ranges} == {(0, 0), (0, 1)}, "they share their place in the order"


def test_pm_simplify_ranges_but_for_merging() -> None:
    """A loop that is only used below a bound becomes shorter."""
    i = loop(12)
    place = (i < 5).where(i, INVALID)
    stored = sink_of(Y.index(place).store(X.index(place)).end(i))
    others = exchanged(pm_simplify_ranges, simplify_merge_adjacent, 1)
    short = graph_rewrite(stored, others, ctx={})
    assert [int(u.vmax) + 1 for u in short.toposort() if u.op is Ops.RANGE] == [5]
    assert count_divmod(copied(i, X.index(i // 4 + i % 4))) == 2


def test_substitute_rules() -> None:
    i, j = loop(12), loop(3, 1)
    assert graph_rewrite(i * 2, _substitute, ctx={i: j}) is j * 2


def test_pm_reduce_unparented() -> None:
    i, r = loop(3), loop(4, 1, AxisType.REDUCE)
    once = graph_rewrite(total(PLACES.index(i), r), pm_reduce_unparented)
    assert once.op is Ops.MUL and once.src[0] is PLACES.index(i)


def test_pm_reduce_simplify() -> None:
    """A sum over positions is a formula."""
    i, r = loop(3), loop(4, 1, AxisType.REDUCE)
    counted = total((r < i).where(UOp.const(1), UOp.const(0)), r)
    assert graph_rewrite(counted, pm_reduce_simplify) is i
    assert graph_rewrite(counted, our_rules.reduce_simplify) is i


def test_load_collapse() -> None:
    """A sum over all places of which one counts is a load, also where another place is written."""
    i, r = loop(3), loop(12, 1, AxisType.REDUCE)
    written = (i * 2 + PLACES.index(i).cast(dtypes.weakint) != 7).where(X.index(r), 0)
    for value in (X.index(r), written):
        load = graph_rewrite(total((PLACES.index(i) != r).where(0, value), r), load_collapse)
        assert not count(load)[Ops.REDUCE] and not any(u is r for u in load.toposort())


def test_rules_of_load_collapse() -> None:
    """Of which we replace one each, found by the operator."""
    for all_rules, known, ops in (
        (simplify.pm_reduce_load_collapse, simplify.pm_reduce_collapse, [Ops.CMPNE, Ops.REDUCE]),
        (simplify.pm_load_collapse, PatternMatcher([]), [Ops.REDUCE, Ops.CMPLT]),
        (simplify.pm_reduce_simplify, pm_reduce_unparented, [Ops.REDUCE]),
    ):
        own = [pattern.op for pattern, _ in all_rules.patterns[len(known.patterns) :]]
        assert own == [(op,) for op in ops]


def test_scheduler() -> None:
    """Loops become threads, groups of them, and what is unrolled."""
    i, r = loop(64), loop(16, 1, AxisType.REDUCE)
    long = buffer_param(0, F32, 1024)
    sink = sink_of(buffer_param(1, F32, 64).index(i).store(total(long.index(i * 16 + r), r)).end(i))
    loops = Scheduler(sink.replace(arg=KernelInfo(name="k")), CL)
    loops.convert_loop_to_global()
    assert loops.output_shape[0] == 64 and loops.reduceop is not None and len(loops.bufs) == 2
    assert loops.axes_of(AxisType.GLOBAL) == [0] and loops.axes_of(AxisType.REDUCE) == [1]
    loops.apply_opt(Opt(OptOps.UPCAST, 0, 4))
    loops.apply_opt(Opt(OptOps.LOCAL, 0, 8))
    assert loops.upcast_size() == 4
    with pytest.raises(KernelOptError):
        loops.apply_opt(Opt(OptOps.LOCAL, 0, 7))
    made = loops.get_optimized_ast(name_override="k")
    kinds = {u.arg[-1] for u in made.toposort() if u.op is Ops.RANGE}
    assert kinds == {AxisType.GLOBAL, AxisType.LOCAL, AxisType.UPCAST, AxisType.REDUCE}


# --- from loops to threads and lines ---


def test_expander2() -> None:
    i = loop(4, 0, AxisType.UPCAST)
    stored = sink_of(Y.index(i).store(X.index(i)).end(i))
    wide = graph_rewrite(stored, expander2, ctx=build_range_map(stored))
    assert not count(wide)[Ops.RANGE] and any(u.shape == (4,) for u in wide.toposort() if u._shape)


def test_pm_reduce_local_and_merge_reduce_ends() -> None:
    """REDUCEs over the same loop share it."""
    r = loop(12, 0, AxisType.REDUCE)
    both = [X.index(UOp.const(k)).store(total(X.index(r), r, by=op))
            for k, op in enumerate((Ops.ADD, Ops.MAX))]  # fmt: skip
    lowered = graph_rewrite(sink_of(*both), mop_cleanup + pm_reduce_local, ctx=ReduceContext())
    assert not count(lowered)[Ops.REDUCE] and count(lowered)[Ops.END] == 1
    ends = [X.index(r).store(Y.index(r)).end(r).replace(tag="mergeable") for r in [r]]
    ends.append(Y.index(r).store(X.index(r)).end(r).replace(tag="mergeable"))
    assert count(merge_reduce_ends(sink_of(*ends)))[Ops.END] == 1


def test_pm_add_local_buffers_and_pm_implicit_barriers() -> None:
    """What threads of a group share lies in memory of theirs, behind a barrier."""
    shared, r = loop(16, 0, AxisType.GROUP_REDUCE), loop(4, 1, AxisType.REDUCE)
    long = buffer_param(0, F32, 64)
    sink = sink_of(Y.index(UOp.const(0)).store(total(long.index(shared * 4 + r), shared, r)))
    reduced = graph_rewrite(sink, mop_cleanup + pm_reduce_local, ctx=ReduceContext())
    staged = graph_rewrite(reduced, pm_add_local_buffers, ctx=itertools.count())
    spaces = {u.addrspace for u in staged.toposort() if u.op is Ops.BUFFER}
    assert AddrSpace.LOCAL in spaces and not count(staged)[Ops.STAGE]
    assert count(graph_rewrite(staged, pm_implicit_barriers))[Ops.BARRIER]


def test_pm_add_gpudims() -> None:
    i, j = loop(3, 0, AxisType.GLOBAL), loop(4, 1, AxisType.LOCAL)
    stored = sink_of(Y.index(i * 4 + j).store(X.index(i * 4 + j)).end(i, j))
    threads = graph_rewrite(stored.replace(arg=KernelInfo(name="k")), pm_add_gpudims, ctx=CL)
    names = {u.arg for u in threads.toposort() if u.op is Ops.SPECIAL}
    assert names == {"gidx0", "lidx0"} and not count(threads)[Ops.RANGE]
    info = ProgramInfo.from_sink(threads, CL.target)
    assert info.launch_dims({}) == ((3, 1, 1), (4, 1, 1))


def test_pm_expand_broadcast_pm_add_loads_and_devectorizer2() -> None:
    wide = X.reshape((3, 4)) + UOp.const(1.0, F32)
    assert all(s.shape == (3, 4) for s in graph_rewrite(wide, pm_expand_broadcast).src)
    i = loop(12)
    loaded = graph_rewrite(copied(i), pm_add_loads)
    assert count(loaded)[Ops.LOAD] == 1 and loaded.src[0].src[0].src[0].op is Ops.INDEX
    four = UOp.const((0, 1, 2, 3))
    stored = sink_of(Y.index(four).store(X.index(four).load()))
    apart = graph_rewrite(stored, symbolic_simple + devectorizer2, ctx=CL)
    assert count(apart)[Ops.STORE] == count(apart)[Ops.LOAD] == 4


def test_ew_devectorizer() -> None:
    pair = UOp.const((1.0, 2.0), F32) + UOp.stack(X.index(UOp.const(0)), X.index(UOp.const(1)))
    apart = graph_rewrite(pair, symbolic_simple + ew_devectorizer, bottom_up=True)
    assert apart.op is Ops.STACK and [s.op for s in apart.src] == [Ops.ADD, Ops.ADD]


def test_memory_coalescing() -> None:
    """Neighbours become one wide load and one wide store, where the device has those."""
    stores = [Y.index(UOp.const(k)).store(X.index(UOp.const(k)).load()) for k in range(4)]
    wide = memory_coalescing(sink_of(*stores), CL)
    assert count(wide)[Ops.LOAD] == count(wide)[Ops.STORE] == 1
    narrow = memory_coalescing(sink_of(*stores), WGSLRenderer(Target("WEBGPU")))
    assert count(narrow)[Ops.LOAD] == 4


def test_simplify_valid_load() -> None:
    i = loop(12)
    simpler = simplify_valid_load(X, i % 6, i < 5)
    assert simpler is not None and not count(simpler)[Ops.FLOORMOD]


def test_pm_move_gates_from_index() -> None:
    """A gate of a place becomes one of the load or the store; two rules say what a load is else."""
    i = loop(12)
    place = (i < 5).where(i, INVALID)
    rules = exchanged(pm_move_gates_from_index, move_where_load, 2)
    load = graph_rewrite(X.index(place).load(), rules)
    assert load.src[0] is X.index(i) and load.src[1].arg == 0 and load.src[2] is (i < 5)
    store = graph_rewrite(Y.index(place).store(UOp.const(1.0, F32)), rules)
    assert store.src[0] is Y.index(i) and store.src[2] is (i < 5)
    outside = (i < 5).where(load, UOp.const(2.0, F32))
    assert graph_rewrite(outside, rules) is outside
    assert graph_rewrite(outside, pm_move_gates_from_index) is not outside
    with pytest.raises(ImportError, match="other rules"):
        exchanged(rules, move_where_load, 2)


def test_control_flow_linearize_and_cleanups() -> None:
    """Loops one after the other, each closed before the next, and gated stores in an IF."""
    first, second = copied(loop(12)).src[0], copied(loop(12, 1)).src[0]
    gate = loop(12, 2)
    gated = Y.index(gate).store(UOp.const(1.0, F32), gate < 5).end(gate)
    sink = sink_of(first, second, gated)
    ordered = graph_rewrite(sink, pm_add_control_flow, ctx=CFGContext(sink), bottom_up=True)
    lines = [u.op for u in line_rewrite(linearize(ordered), pm_linearize_cleanups)]
    open_and_shut = [op for op in lines if op in (Ops.RANGE, Ops.END)]
    assert open_and_shut == [Ops.RANGE, Ops.END] * 3
    assert lines.count(Ops.IF) == lines.count(Ops.ENDIF) == 1


# --- the schedule ---


def scheduled(value: UOp) -> UOp:
    target = buffer_param(5, value.dtype, value.max_numel())
    return sink_of(target.after(target.reshape(value.shape).store(value)))


def test_run_rangeify_and_pm_const_buffer_folding() -> None:
    """Shapes become loops, and values that change their loops are staged."""
    rows = X.reshape((3, 4)).sum(1)
    sink = graph_rewrite(scheduled(rows), pm_mops + earliest_rewrites, bottom_up=True)
    ranged = run_rangeify(sink)
    kinds = Counter(u.arg[-1] for u in ranged.toposort() if u.op is Ops.RANGE)
    assert kinds[AxisType.REDUCE] == 1 and kinds[AxisType.WEAK] >= 1
    assert not any(u.op in GroupOp.Movement - {Ops.SHRINK} for u in ranged.toposort())
    empty = X.shrink(((0, 0),)).sum()
    assert not count(graph_rewrite(sink_of(empty), earliest_rewrites))[Ops.REDUCE]
    i = loop(3)
    const = UOp.const(1.0, F32).bufferize(i, arg=BufferizeOpts("CPU")).index(i)
    assert graph_rewrite(const, pm_const_buffer_folding).base.op is Ops.CONST


def test_kernels_of_the_schedule() -> None:
    """A CALL for each STAGE that is not removed, in order; buffers between them."""
    rows = X.reshape((3, 4))
    values = scheduled(rows * rows.sum(0))
    sink = run_rangeify(graph_rewrite(values, pm_mops + earliest_rewrites, bottom_up=True))
    staged = [u for u in sink.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.STAGE]
    kept = [u.src[0] for u in staged if remove_bufferize(u.src[0].src[0], u.src[0], u) is None]
    assert Ops.REDUCE in {stage.src[0].op for stage in kept}, "sums are stored"
    rules = pm_add_buffers + pm_add_param_range_tags
    sink = graph_rewrite(sink, rules, ctx=itertools.count(), bottom_up=True)
    sink = graph_rewrite(graph_rewrite(sink, split_kernels, bottom_up=True), pm_no_indexing_calls)
    kernels = create_schedule(sink).src
    assert all(k.op is Ops.CALL and k.src[0].op is Ops.SINK for k in kernels)
    assert all(k.src[0].src[0].op in (Ops.END, Ops.STORE) for k in kernels)
    first, second = schedule(values, lambda _: False)
    (between,) = {u for u in first.src[1:] if u.op is Ops.BUFFER}
    assert between in second.src and all(
        u.op is Ops.PARAM for u in second.src[1:] if u is not between
    )


def test_pm_limit_bufs() -> None:
    """Operators on too many buffers get some of their operands from a kernel before them."""
    many = [sealed("neg", F32, (buffer_param(k, F32, 12),)) for k in range(8)]
    value = many[0]
    for one in many[1:]:
        value = sealed("add", F32, (value, one))
    sink = run_rangeify(
        graph_rewrite(scheduled(value), pm_mops + earliest_rewrites, bottom_up=True)
    )
    limit = LimitBufsContext(range_idx=itertools.count(100))
    with Context(MAX_KERNEL_BUFFERS=5):
        cut = graph_rewrite(sink, pm_limit_bufs, ctx=limit)
    assert count(cut)[Ops.STAGE] > count(sink)[Ops.STAGE]


# --- rewriting, and the list of passes ---


def test_rewriting_with_a_memory_is_tinygrads() -> None:
    i = loop(12)
    graphs = [copied(i, X.index((i * 4 + k) // 4 % 12) + float(k)) for k in range(4)]
    plain = [graph_rewrite(graph, sym) for graph in graphs]
    with compiling():
        assert RewriteContext.unified_rewrite is rewriting._with_memory
        assert [graph_rewrite(graph, sym) for graph in graphs] == plain
        assert [graph_rewrite(graph, sym) for graph in graphs] == plain


def test_what_tinygrad_remembers_without_end_is_forgotten() -> None:
    """Else a worker, and a program on a portable device, would grow with every new shape."""
    i = loop(2)
    with compiling():
        for size in range(rewriting.MOST_REMEMBERED + 1):
            apply_movement_op(Ops.RESHAPE, (2,), (2, 1), (i + size,))
        assert apply_movement_op.cache_info().currsize > rewriting.MOST_REMEMBERED
    assert apply_movement_op.cache_info().currsize == 0


def test_each_pass_alone() -> None:
    """The list by name: what comes out of one is what the next is given."""
    hooks = Hooks(c_renderer.Target(Target("CPU")), lambda sink: sink, half_casts)
    by_name = {one.name: one for one in passes(hooks)}
    assert len(by_name) == len(passes(hooks))
    i, j = loop(3), loop(4, 1)
    sink = sink_of(Y.index(i * 4 + j).store(X.index(i * 4 + j)).end(i, j))
    merged = by_name["merge loops"](sink)
    assert [int(u.vmax) + 1 for u in merged.toposort() if u.op is Ops.RANGE] == [12]
    assert count(by_name["loads"](merged))[Ops.LOAD] == 1
    lines = [u.op for u in lower_kernel(sink, hooks)]
    assert [lines.count(op) for op in (Ops.RANGE, Ops.LOAD, Ops.STORE, Ops.END)] == [1, 1, 1, 1]


def test_every_imported_rule_has_a_contract() -> None:
    """Whatever rules and passes of tinygrad's the package imports are in this file."""
    here = Path(__file__).read_text()
    package = Path(rewriting.__file__).parent
    used = {
        name.name
        for path in package.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(RULES)
        for name in node.names
    }
    assert {name for name in used if name not in here} == set()


RULES = (
    *("tinygrad.codegen", "tinygrad.schedule", "tinygrad.uop.symbolic", "tinygrad.uop.weak"),
    *("tinygrad.uop.movement",),
)


def test_tinygrad_has_one_door_and_targets_do_not_know_each_other() -> None:
    package = Path(rewriting.__file__).parent.parent
    for path in package.rglob("*.py"):
        where = path.relative_to(package).as_posix()
        for name in imported(ast.parse(path.read_text())):
            if not where.startswith("uops/"):
                assert not name.startswith("tinygrad"), f"{where} imports {name}"
            if where.startswith("portable/"):
                assert not name.startswith("torch_tiny.engine.cuda"), f"{where} imports {name}"


def imported(node: ast.AST) -> Iterator[str]:
    """The modules that are imported when it runs."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom):
        yield node.module or ""
    elif isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def test_the_rule_of_stacks_leaves_sealed_operators_alone() -> None:
    """tinygrad's own would lose their name."""
    x, y = X.index(UOp.const(0)), Y.index(UOp.const(1))
    pair = (UOp.stack(x, x), UOp.stack(y, y))
    ours = sealed("sub", F32, pair)
    assert graph_rewrite(ours, our_rules.sym) is ours
    assert graph_rewrite(pair[0] + pair[1], our_rules.sym).op is Ops.STACK
