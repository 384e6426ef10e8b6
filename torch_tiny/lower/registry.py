"""Which rule a call has: its own, or one derived from its schema."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

from torch_tiny.lower import complex_rules, movement
from torch_tiny.lower.complex_value import Complex, as_value, is_complex
from torch_tiny.lower.conditions import collected
from torch_tiny.lower.promote import Lifted, NoLowering, default_dtype, under_default
from torch_tiny.lower.rule import Results, Rule, Shapes, heavy, light
from torch_tiny.schemas import Argument, Schema, is_decomposed, overloads_of, schema_of
from torch_tiny.uops import DType, UOp, dtypes
from torch_tiny.views import ViewSpec

_FAMILIES = (
    *("activation", "complex_rules", "creation", "distance", "elementwise", "fft", "index"),
    *("linalg", "masks", "movement", "nn", "optim", "polynomials", "pool", "random", "reduce"),
    *("special", "spectral"),
)
# All of their functions are heavy.
_HEAVY = ("antialias", "attention", "bags", "fractional", "grid", "histogram", "matmul", "sort")
RULES: dict[str, Rule] = {
    f"aten::{name}": row if isinstance(row, Rule) else Rule(row, cost=cost)
    for families, cost in ((_FAMILIES, light), (_HEAVY, heavy))
    for family in families
    for name, row in import_module(f"torch_tiny.lower.{family}").TABLE.items()
}
for _name, _function in complex_rules.COLUMN.items():
    _row = RULES.get(f"aten::{_name}", Rule())
    RULES[f"aten::{_name}"] = replace(_row, complex=_function)


class Lowered(NamedTuple):
    """A call as UOps."""

    results: Results
    """In the order of the schema's results, lists flattened; then the new values of arguments that
    are written and not returned, in the order of the arguments. None where there is no tensor."""
    conditions: list[UOp]
    """What must hold, element by element, for the call not to raise."""


def lower(
    op: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    layout: ViewSpec | None = None,
    default: DType = dtypes.float32,
) -> Lowered:
    """`layout`: how the first argument lies in memory; row by row if that is not known.

    `default`: PyTorch's default type when the call was recorded.
    """
    with collected() as conditions, under_default(default):
        return Lowered(_lowered(op, args, kwargs, layout), conditions)


def _lowered(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], layout: ViewSpec | None = None
) -> Results:
    plan = _plan(op)
    if plan is None:
        raise NoLowering("there is no rule", op)
    try:
        return plan.apply(_bound(plan.schema, args, kwargs), layout)
    except NoLowering as no:
        raise NoLowering(no.why, op) from no


def has_lowering(op: str) -> bool:
    """Whether there is a rule; a call may still be refused for its arguments."""
    return _plan(op) is not None


def is_heavy(op: str, shapes: Shapes) -> bool:
    """Whether the rule's code does much more work than its inputs and outputs have elements.

    What a decomposition does is not known before it is traced; attention is among them.
    """
    plan = _plan(op)
    return plan is not None and plan.rule.cost(shapes)


def written(op: str, args: Sequence[Any]) -> tuple[str, ...]:
    """The names of the arguments that a call writes."""
    rule, schema = RULES.get(op), schema_of(op)
    if rule is not None and rule.writes is not None:
        return rule.writes(args)
    return () if schema is None else tuple(a.name for a in schema.written)


@dataclass(frozen=True)
class _Plan:
    schema: Schema
    apply: Callable[[list[Any], ViewSpec | None], Results]
    rule: Rule
    """The one that does the work."""


@functools.cache
def _plan(op: str) -> _Plan | None:
    schema = schema_of(op) if op.startswith("aten::") else None
    if schema is None:
        return None
    rule = RULES.get(op)
    if rule is not None:
        return _Plan(schema, functools.partial(_applied, rule), rule)
    plans = (derive(op, schema) for derive in (_in_place, _out, _foreach, _decomposed))
    return next((plan for plan in plans if plan is not None), None)


def _applied(rule: Rule, bound: list[Any], layout: ViewSpec | None) -> Results:
    function = rule.complex if is_complex(bound) else rule.function
    if function is None:
        raise NoLowering(f"{'no rule ' if is_complex(bound) else ''}for complex numbers")
    value = function(*bound, layout=layout) if rule.reads_layout else function(*bound)
    return (value,) if isinstance(value, UOp | Complex) else tuple(value)


def _in_place(op: str, schema: Schema) -> _Plan | None:
    """add_ is add, and __ilshift__ __lshift__, cast and broadcast to the tensor it writes."""
    name, _, overload = op.partition(".")
    if not name.endswith("_") or name.startswith("aten::_foreach"):
        return None
    is_operator = name.startswith("aten::__i")
    name = name.replace("__i", "__", 1) if is_operator else name[:-1]
    functional = f"{name}.{overload}" if overload else name
    if schema_of(functional) is None:  # pow_.Tensor is pow.Tensor_Tensor
        functional = _overload_with(name, _described(schema.arguments)) or functional
    plan = _plan(functional)
    if plan is None:
        return None

    if functional.removeprefix("aten::") in movement.VIEWS:
        return plan  # squeeze_ changes the tensor's shape, not its values

    def apply(bound: list[Any], layout: ViewSpec | None) -> Results:
        pairs = zip(schema.arguments, bound, strict=True)
        written = (v if isinstance(v, list | tuple) else [v] for a, v in pairs if a.is_write)
        return _as_targets(plan.apply(bound, layout), [t for some in written for t in some])

    return _Plan(schema, apply, plan.rule)


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

    def apply(bound: list[Any], layout: ViewSpec | None) -> Results:
        given, outs = bound[:-count], bound[-count:]
        named = dict(zip((a.name for a in schema.arguments), given, strict=False))
        named["dtype"] = named.get("dtype") or outs[0].dtype
        full = [named.get(a.name) for a in plan.schema.arguments]
        results = plan.apply(full, layout)
        return tuple(
            None if r is None else as_value(r, out) for r, out in zip(results, outs, strict=True)
        )

    return _Plan(schema, apply, plan.rule)


def _overload_with(name: str, arguments: list[str]) -> str | None:
    """The operator of this name that takes these arguments and makes its result."""
    for op in overloads_of(name):
        schema = schema_of(op)
        if schema is not None and _described(schema.arguments) == arguments:
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
    base, in_place = name.removeprefix("_foreach_").removesuffix("_"), name.endswith("_")
    base = _FOREACH_NAMES.get((base, overload)) or _FOREACH_NAMES.get((base, "")) or base
    overloads = (f".{one}" for one in _FOREACH_OVERLOADS.get(overload, ()))
    plans = (_plan(f"aten::{base}{one}") for one in (*overloads, ""))
    plan = next((plan for plan in plans if plan is not None), None)
    if plan is None:
        return None

    def apply(bound: list[Any], _layout: ViewSpec | None) -> Results:
        lists = [i for i, a in enumerate(schema.arguments) if "List[" in a.type]
        results: list[UOp | Complex | None] = []
        for n in range(len(bound[lists[0]])):
            row = [v[n] if i in lists else v for i, v in enumerate(bound)]
            if overload == "Tensor" and base in ("addcdiv", "addcmul"):
                row[-1] = row[-1].shrink(((n, n + 1),)).reshape(())
            if base == "linalg_vector_norm":
                row = [row[0], row[1], None, False, row[2]]
            one = plan.apply(_bound(plan.schema, row, {}), None)
            results += _as_targets(one, [row[0]]) if in_place else one
        return tuple(results)

    return _Plan(schema, apply, plan.rule)


_FOREACH_NAMES = {
    ("norm", ""): "linalg_vector_norm",
    **{("maximum", overload): "clamp_min" for overload in ("Scalar", "ScalarList")},
    **{("minimum", overload): "clamp_max" for overload in ("Scalar", "ScalarList")},
}
_FOREACH_OVERLOADS = {
    "List": ("Tensor", "Tensor_Tensor"),
    "Scalar": ("Tensor_Scalar", "Scalar"),
    "ScalarList": ("Tensor_Scalar", "Scalar"),
    "Tensor": ("Tensor",),
    "ScalarAndTensor": ("Scalar",),
}


def _decomposed(op: str, schema: Schema) -> _Plan | None:
    if schema.written or not is_decomposed(op):
        return None

    def apply(bound: list[Any], _layout: ViewSpec | None) -> Results:
        def step(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Results:
            if name == op:
                raise NoLowering("its decomposition needs itself")
            return _lowered(name, args, kwargs)

        if default_dtype() != dtypes.float32:
            raise NoLowering("a decomposition under another default type")
        from torch_tiny.lower import decompose  # with it comes torch

        return decompose.lower_by_tracing(op, bound, step, RULES.keys())

    return _Plan(schema, apply, Rule(cost=heavy))


def _as_targets(results: Results, targets: Sequence[UOp | Complex]) -> Results:
    return tuple(
        None if r is None else as_value(r, t).expand(t.shape)
        for r, t in zip(results, targets, strict=True)
    )


def _bound(schema: Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """One value per argument of the schema."""
    bound = []
    for i, argument in enumerate(schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.N is not None and isinstance(value, int | float | Lifted):
            value = [value] * argument.N
        bound.append(value)
    return bound
