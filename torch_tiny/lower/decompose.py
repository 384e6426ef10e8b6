"""The long tail: PyTorch's own decompositions, traced on fake tensors into calls with rules."""

import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from torch_tiny import scalar_types
from torch_tiny.lower.complex_value import PARTS, Complex
from torch_tiny.lower.promote import Lifted, NoLowering
from torch_tiny.lower.rule import Results
from torch_tiny.lower.shapes import DTYPES, full
from torch_tiny.uops import UOp

Step = Callable[[str, Sequence[Any], Mapping[str, Any]], Results]

# The compiler's types are stand-ins for torch's where torch was not imported before (scalar_types).
_THEIRS: dict[Any, torch.dtype] = {
    ours: getattr(torch, str(ours).removeprefix("torch.")) for ours in (*DTYPES, *PARTS)
}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_DTYPES: dict[Any, torch.dtype] = _THEIRS | {dtype: _THEIRS[o] for o, dtype in DTYPES.items()}


def lower_by_tracing(
    name: str, args: Sequence[Any], step: Step, with_rules: Container[str]
) -> Results:
    """Traces the decomposition of one call and lowers each call it makes by `step`."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    leaves, spec = pytree.tree_flatten([_translated(arg, _THEIRS) for arg in args])
    if any(isinstance(leaf, Lifted) or getattr(leaf, "is_number", False) for leaf in leaves):
        raise NoLowering("a decomposition needs the value of a number")
    tensors = [leaf for leaf in leaves if isinstance(leaf, UOp | Complex)]

    def call(*given: torch.Tensor) -> Any:
        left = iter(given)
        filled = [next(left) if isinstance(leaf, UOp | Complex) else leaf for leaf in leaves]
        return _call(op, pytree.tree_unflatten(filled, spec))

    table = {o: rule for o, rule in _table().items() if _name(o) not in with_rules or o is op}
    try:
        with FakeTensorMode():
            fakes = [torch.empty([*map(int, x.shape)], dtype=_DTYPES[x.dtype]) for x in tensors]
            # Decompositions write in place; the tables have functional operators only.
            pure = torch.func.functionalize(call, remove="mutations_and_views")
            graph = make_fx(pure, decomposition_table=table)(*fakes)
    except NoLowering:
        raise
    except Exception as error:
        raise NoLowering(f"tracing its decomposition failed: {error}") from error
    return _interpret(graph, tensors, step)


def _call(op: torch._ops.OpOverload, bound: Sequence[Any]) -> Any:
    given = list(zip(op._schema.arguments, bound, strict=True))
    named = {a.name: v for a, v in given if a.kwarg_only}
    return op(*(v for a, v in given if not a.kwarg_only), **named)


def _interpret(
    graph: torch.fx.GraphModule, tensors: Sequence[UOp | Complex], step: Step
) -> Results:
    values: dict[Node, Any] = {}
    inputs = iter(tensors)
    for node in graph.graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = _constant(getattr(graph, node.target))
        elif node.op == "output":
            return tuple(x for x in pytree.tree_leaves(args, is_leaf=lambda v: v is None))
        elif node.target is operator.getitem:
            values[node] = args[0][args[1]]
        else:
            given = [_translated(arg, _OURS) for arg in args]
            named = {key: _translated(arg, _OURS) for key, arg in kwargs.items()}
            results = step(_name(node.target), given, named)
            returns = node.target._schema.returns
            many = len(returns) > 1 or "List" in str(returns[0].type)
            values[node] = results if many else results[0]
    raise NoLowering("its decomposition gives nothing")


def _constant(tensor: torch.Tensor) -> UOp:
    dtype = _OURS.get(tensor.dtype)
    if tensor.numel() != 1 or dtype not in DTYPES:
        raise NoLowering("its decomposition has a table of numbers")
    return full(tuple(tensor.shape), tensor.item(), DTYPES[dtype])


def _translated(value: Any, types: Mapping[Any, Any]) -> Any:
    return types.get(value, value) if isinstance(value, torch.dtype | scalar_types.dtype) else value


def _name(op: Any) -> str:
    namespace, _, rest = str(op).partition(".")
    return f"{namespace}::{rest}".removesuffix(".default")


@functools.cache
def _table() -> dict[Any, Callable[..., Any]]:
    return {**decomposition_table, **core_aten_decompositions()}
