"""Which rule a call has: its own, or one derived from its schema."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_tiny.lower import (
    activation,
    antialias,
    attention,
    bags,
    complex_linalg,
    complex_rules,
    complex_spectral,
    creation,
    distance,
    elementwise,
    fft,
    fractional,
    grid,
    histogram,
    index,
    linalg,
    margin,
    masks,
    matmul,
    movement,
    nn,
    optim,
    polynomials,
    pool,
    random,
    reduce,
    sort,
    special,
    spectral,
)
from torch_tiny.lower.complex_rules import ComplexRule
from torch_tiny.lower.complex_value import Complex, as_value, is_complex
from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.tools import Rule
from torch_tiny.schemas import Argument, Schema, is_decomposed, overloads_of, schema_of
from torch_tiny.uops import UOp

Results = tuple[UOp | Complex | None, ...]

_FAMILIES = (
    activation, antialias, attention, bags, creation, distance, elementwise, fractional, grid,
    histogram, index, linalg, margin, masks, matmul, movement, nn, optim, polynomials, pool, random,
    reduce, sort, special, spectral,
)  # fmt: skip
RULES: dict[str, Rule] = {
    f"aten::{name}": rule for family in _FAMILIES for name, rule in family.TABLE.items()
}
COMPLEX_RULES: dict[str, ComplexRule] = {
    f"aten::{name}": rule
    for table in (
        *(family.TABLE for family in (complex_rules, complex_linalg, complex_spectral, fft)),
        random.COMPLEX_TABLE,
    )
    for name, rule in table.items()
}
# These make complex tensors of real ones.
_ALWAYS_COMPLEX = {f"aten::{name}" for name in (*fft.TABLE, "complex", "polar", "view_as_complex")}

_QUADRATIC = [
    name
    for family in (
        matmul,
        sort,
        fft,
        antialias,
        attention,
        bags,
        distance,
        fractional,
        grid,
        histogram,
        masks,
    )
    for name in family.TABLE
    if not name.startswith("_cdist")
]

# More work than elements: worth compiling only where there is nothing else to run them on.
_HEAVY = {
    *(f"aten::{name}" for name in _QUADRATIC),
    *(
        f"aten::{name}"
        for name in index.TABLE
        if name.startswith(("scatter", "index_", "_index_put", "_unsafe_index_put", "put"))
        or name == "embedding_dense_backward"
    ),
    *(f"aten::{name}" for name in reduce.TABLE if name.strip("_").startswith(("cum", "logcum"))),
    *(
        f"aten::{name}"
        for family in (movement, pool)
        for name in family.TABLE
        if name.endswith("_backward") and any(k in name for k in ("pad", "upsample", "max_pool"))
    ),
    "aten::col2im",
    "aten::unfold_backward",
} - {"aten::index_select"}


_FACTORIZATIONS = {f"aten::{name}" for name in linalg.TABLE | spectral.TABLE}


def lower(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Results:
    """The results of a call as UOps.

    In the order of the schema's results, lists flattened; then the new values of arguments that are
    written and not returned, in the order of the arguments. None where the call gives no tensor.
    """
    plan = _plan(op)
    if plan is None:
        raise NoLowering("there is no rule", op)
    try:
        return plan.apply(_bound(plan.schema, args, kwargs))
    except NoLowering as no:
        raise NoLowering(no.why, op) from no


def has_lowering(op: str) -> bool:
    """Whether there is a rule; a call may still be refused for its arguments."""
    return _plan(op) is not None


def is_heavy(op: str, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the rule's code does much more work than its inputs and outputs have elements.

    What a decomposition does is not known before it is traced; attention is among them. Many small
    matrices are factored faster here, a few or large ones are not.
    """
    plan = _plan(op)
    if plan is None:
        return False
    if plan.base in _FACTORIZATIONS:
        return not shapes or linalg.is_for_libraries(shapes[0])
    return plan.base in _HEAVY or not _has_rule(plan.base)


def written(op: str, args: Sequence[Any]) -> tuple[str, ...]:
    """The names of the arguments that a call writes; native_batch_norm only when training."""
    if op == "aten::native_batch_norm":  # whose schema does not say so
        return ("running_mean", "running_var") if args[_TRAINING] else ()
    schema = schema_of(op)
    return () if schema is None else tuple(a.name for a in schema.written)


_TRAINING = 5  # the place of native_batch_norm's argument


@dataclass(frozen=True)
class _Plan:
    schema: Schema
    apply: Callable[[list[Any]], Results]
    base: str
    """The entry of the tables that does the work."""


@functools.cache
def _plan(op: str) -> _Plan | None:
    schema = schema_of(op) if op.startswith("aten::") else None
    if schema is None:
        return None
    if _has_rule(op):
        return _Plan(schema, lambda bound: _results(_rule(op, bound)(*bound)), op)
    for derive in (_in_place, _out, _foreach, _decomposed):
        plan = derive(op, schema)
        if plan is not None:
            return plan
    return None


def _has_rule(op: str) -> bool:
    return op in RULES or op in COMPLEX_RULES


def _rule(op: str, bound: list[Any]) -> ComplexRule:
    rule: ComplexRule | None = RULES.get(op)
    if op in _ALWAYS_COMPLEX or is_complex(bound):
        rule = COMPLEX_RULES.get(op)
    if rule is None:
        raise NoLowering("no rule for complex numbers" if op in RULES else "for complex numbers")
    return rule


def _in_place(op: str, schema: Schema) -> _Plan | None:
    """add_ is add, cast and broadcast to the tensor it writes."""
    name, _, overload = op.partition(".")
    if not name.endswith("_") or name.startswith("aten::_foreach"):
        return None
    functional = f"{name[:-1]}.{overload}" if overload else name[:-1]
    if schema_of(functional) is None:  # pow_.Tensor is pow.Tensor_Tensor
        functional = _overload_with(name[:-1], _described(schema.arguments)) or functional
    plan = _plan(functional)
    if plan is None:
        return None

    if functional.removeprefix("aten::") in movement.VIEWS:
        return plan  # squeeze_ changes the tensor's shape, not its values

    def apply(bound: list[Any]) -> Results:
        targets = _written_tensors(schema, bound)
        return _as_targets(plan.apply(bound), targets)

    return _Plan(schema, apply, plan.base)


def _out(op: str, schema: Schema) -> _Plan | None:
    """add.out is the overload of add with the same other arguments."""
    count = sum(a.is_out for a in schema.arguments)
    name = op.partition(".")[0]
    if not count:
        return None
    functional = _overload_with(name, _described(a for a in schema.arguments if not a.is_out))
    plan = None if functional is None else _plan(functional)
    if plan is None:
        return None

    def apply(bound: list[Any]) -> Results:
        given, outs = bound[:-count], bound[-count:]
        named = dict(zip((a.name for a in schema.arguments), given, strict=False))
        named["dtype"] = named.get("dtype") or outs[0].dtype
        full = [named.get(a.name) for a in plan.schema.arguments]
        results = plan.apply(full)
        return tuple(
            None if r is None else as_value(r, out) for r, out in zip(results, outs, strict=True)
        )

    return _Plan(schema, apply, plan.base)


def _overload_with(name: str, arguments: list[str]) -> str | None:
    """The operator of this name that takes these arguments and makes its result."""
    for op in overloads_of(name):
        schema = schema_of(op)
        if schema is None or any(a.is_out for a in schema.arguments):
            continue
        if _described(schema.arguments) == arguments:
            return op
    return None


def _described(arguments: Iterable[Argument]) -> list[str]:
    return [a.type + a.name for a in arguments if a.name not in _TENSOR_OPTIONS]


# Of a functional overload that makes a tensor: with out= they are the tensor's.
_TENSOR_OPTIONS = {"dtype", "layout", "device", "pin_memory"}


def _foreach(op: str, schema: Schema) -> _Plan | None:
    """_foreach_add is add of the i-th tensors; lists of numbers go along."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    if not name.startswith("_foreach_"):
        return None
    base = name.removeprefix("_foreach_")
    in_place = base.endswith("_")
    base = base.removesuffix("_")
    base = _FOREACH_NAMES.get((base, overload)) or _FOREACH_NAMES.get((base, "")) or base
    for candidate in (*_FOREACH_OVERLOADS.get(overload, ()), ""):
        single = f"aten::{base}.{candidate}" if candidate else f"aten::{base}"
        plan = _plan(single) if schema_of(single) is not None else None
        if plan is not None:
            break
    else:
        return None

    def apply(bound: list[Any]) -> Results:
        lists = [i for i, a in enumerate(schema.arguments) if "List[" in a.type]
        results: list[UOp | Complex | None] = []
        for n in range(len(bound[lists[0]])):
            row = [v[n] if i in lists else v for i, v in enumerate(bound)]
            if overload == "Tensor" and base in ("addcdiv", "addcmul"):
                row[-1] = row[-1].shrink(((n, n + 1),)).reshape(())
            if base == "linalg_vector_norm":
                row = [row[0], row[1], None, False, row[2]]
            one = plan.apply(_bound(plan.schema, row, {}))
            results += _as_targets(one, [row[0]]) if in_place else one
        return tuple(results)

    return _Plan(schema, apply, plan.base)


_FOREACH_NAMES = {
    ("norm", ""): "linalg_vector_norm",
    ("maximum", "Scalar"): "clamp_min",
    ("maximum", "ScalarList"): "clamp_min",
    ("minimum", "Scalar"): "clamp_max",
    ("minimum", "ScalarList"): "clamp_max",
}
_FOREACH_OVERLOADS = {
    "List": ("Tensor", "Tensor_Tensor"),
    "Scalar": ("Scalar", "Tensor_Scalar"),
    "ScalarList": ("Scalar", "Tensor_Scalar"),
    "Tensor": ("Tensor",),
    "ScalarAndTensor": ("Scalar",),
}


def _decomposed(op: str, schema: Schema) -> _Plan | None:
    if schema.written or not is_decomposed(op):
        return None

    def apply(bound: list[Any]) -> Results:
        def step(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Results:
            if name == op:
                raise NoLowering("its decomposition needs itself")
            return lower(name, args, kwargs)

        from torch_tiny.lower import decompose  # with it comes torch

        return decompose.lower_by_tracing(op, bound, step, _has_rule)

    return _Plan(schema, apply, op)


def _results(value: UOp | Complex | Results) -> Results:
    return (value,) if isinstance(value, UOp | Complex) else tuple(value)


def _as_targets(results: Results, targets: Sequence[UOp | Complex]) -> Results:
    return tuple(
        None if r is None else _expanded(as_value(r, t), t.shape)
        for r, t in zip(results, targets, strict=True)
    )


def _expanded(value: UOp | Complex, shape: tuple[Any, ...]) -> UOp | Complex:
    if isinstance(value, Complex):
        return value.each(lambda part: part.expand(shape))
    return value.expand(shape)


def _bound(schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """One value per argument of the schema."""
    bound = []
    for i, argument in enumerate(schema.arguments):
        given = i < len(args)
        value = args[i] if given else kwargs.get(argument.name, argument.default_value)
        if argument.N is not None and isinstance(value, int | float | Lifted):
            value = [value] * argument.N
        bound.append(value)
    return bound


def _written_tensors(schema: Schema, bound: list[Any]) -> list[UOp | Complex]:
    tensors: list[UOp | Complex] = []
    for argument, value in zip(schema.arguments, bound, strict=True):
        if argument.is_write:
            tensors += value if isinstance(value, list | tuple) else [value]
    return tensors
