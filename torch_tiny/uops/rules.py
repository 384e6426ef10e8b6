"""tinygrad's rules as we use them: with sealed operators, without those that change results."""

from collections.abc import Callable
from typing import Any, cast

from tinygrad.codegen import simplify
from tinygrad.codegen.late.coalesce import simplify_valid_load
from tinygrad.codegen.late.gater import move_where_load, pm_move_gates_from_index
from tinygrad.dtype import dtypes
from tinygrad.renderer.cstyle import create_non_native_float_pats, pm_manual_bf16_cast
from tinygrad.uop import GroupOp, Ops
from tinygrad.uop import symbolic as algebra
from tinygrad.uop.ops import PatternMatcher, UOp, UPat

from torch_tiny.uops.sealed import HALVES, sealed_of_nothing

Function = Callable[..., Any]


def exchanged(
    rules: PatternMatcher, function: Function, count: int, by: Function | None = None
) -> PatternMatcher:
    """The rules with another function for those `count` that call this one, or without these."""
    if sum(called is function for _, called in rules.patterns) != count:
        raise ImportError(f"this tinygrad has other rules with {function.__name__}")
    own: Any = [(p, by if called is function else called) for p, called in rules.patterns]
    return PatternMatcher([rule for rule in own if rule[1] is not None])


def _without_mulacc(rules: PatternMatcher) -> PatternMatcher:
    """The rule that moves an operator into a stack of equal numbers loses the argument of ours."""

    def is_it(pattern: UPat) -> bool:
        operands = pattern.src[0] if pattern.src else ()
        return isinstance(operands, tuple) and [p.op for p in operands] == [(Ops.STACK,)] * 2

    found = [rule for rule in rules.patterns if is_it(rule[0])]
    if len(found) != 1:
        raise ImportError("this tinygrad has other rules of stacks")
    (pattern, function) = found[0]
    others = UPat(GroupOp.ALU - {Ops.MULACC}, src=pattern.src[0], name="alu")
    return PatternMatcher([(others, function), *(r for r in rules.patterns if r is not found[0])])


def _where_needed(a: UOp, i: UOp, alu: UOp, cond: UOp | None = None, x: UOp | None = None) -> UOp:
    """What is no value in x is none in `a & x` only where a is true, in `a | x` where it is not."""
    decides, decided = (a.logical_not(), False) if alu.op is Ops.AND else (a, True)
    if cond is None or x is None:  # no value at all
        return decides.where(UOp.const(decided), i)
    return (decides | cond).where(a.alu(alu.op, x), i)


# tinygrad lets no value be the result of any operator, also where the other operand decides. It
# writes a choice between a truth and False as an AND, so it is asked for places outside of memory.
_of_truths = PatternMatcher(
    [
        (UPat((Ops.AND, Ops.OR), dtypes.bool, src=[none, UPat.var("a")], name="alu"), _where_needed)
        for none in (algebra.invalid_gate, algebra.invalid_pat)
    ]
)

((_, _in_order),) = algebra.commutative.patterns


def _in_any_order(x: UOp) -> UOp | None:
    """Operands in order, unless they differ in what has none: no value, beside a number."""
    try:
        return cast("UOp | None", _in_order(x))
    except TypeError:
        return None


def _ordered(rules: PatternMatcher) -> PatternMatcher:
    return exchanged(rules, _in_order, 1, _in_any_order)


# tinygrad's algebra in three strengths.
symbolic_simple: PatternMatcher = _of_truths + algebra.symbolic_simple + sealed_of_nothing
symbolic: PatternMatcher = _of_truths + _ordered(algebra.symbolic) + sealed_of_nothing
sym: PatternMatcher = _of_truths + _ordered(_without_mulacc(algebra.sym)) + sealed_of_nothing

# Half types are storage: everything is computed in float32, conversions from double go through it.
native_half_casts: PatternMatcher = create_non_native_float_pats(HALVES)
half_casts: PatternMatcher = native_half_casts + pm_manual_bf16_cast

# Two rules make the other side of a WHERE the value that a gated load has outside its gate, also
# where the load's type cannot hold it.
move_gates = exchanged(pm_move_gates_from_index, move_where_load, 2)


def _simpler_index(buf: UOp, x: UOp, cond: UOp, i: UOp) -> UOp | None:  # noqa: ARG001
    """What the gate says of the index. Not of a loop's result: the loop would be there twice."""
    looped = x.op_in_backward_slice_with_self(Ops.END)
    return None if looped else simplify_valid_load(buf, x, cond)


simpler_indices = PatternMatcher(
    [(UPat(Ops.INDEX, src=(UPat.var("buf"), algebra.invalid_gate)), _simpler_index)]
)


def _lifted(x: UOp, y: UOp, c: UOp) -> UOp | None:
    """x + y != c as x != c - y, for a loop in x. tinygrad does it without one, and back again."""
    fits = not simplify.no_range(x) and simplify.no_range(y) and simplify.no_range(c)
    return x.ne(c.cast(y.dtype) - y) if fits else None


def _to_arithmetic(red: UOp, u: UOp) -> UOp | None:
    return simplify.reduce_collapse(red, u, pm=_collapsing)


def _to_load(red: UOp, u: UOp) -> UOp | None:
    return simplify.reduce_collapse(red, u, pm=_picking)


def _replaced(rules: PatternMatcher, op: Ops, function: Function) -> PatternMatcher:
    """With another function for the last rule about an operator."""
    at = max(i for i, (pattern, _) in enumerate(rules.patterns) if pattern.op == (op,))
    kept = list(rules.patterns)
    return PatternMatcher([*kept[:at], (kept[at][0], function), *kept[at + 1 :]])


# A sum over positions is arithmetic, one over what an index picks a load.
_collapsing = _of_truths + simplify.pm_reduce_collapse
_picking = _of_truths + _replaced(simplify.pm_reduce_load_collapse, Ops.CMPNE, _lifted)
reduce_simplify = _replaced(simplify.pm_reduce_simplify, Ops.REDUCE, _to_arithmetic)
load_collapse = _of_truths + _replaced(simplify.pm_load_collapse, Ops.REDUCE, _to_load)
