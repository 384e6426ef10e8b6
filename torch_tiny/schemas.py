"""What operators take and return, written down when the core is built.

So that the process that compiles need not import torch, which takes longer than compiling.
"""

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "_schemas.json"


@dataclass(frozen=True)
class Argument:
    name: str
    type: str
    real_type: str
    """As in the declaration: a ScalarType is an int to TorchScript."""
    default_value: Any
    N: int | None
    """An int stands for a list of this length."""
    is_write: bool
    is_out: bool


@dataclass(frozen=True)
class Schema:
    arguments: tuple[Argument, ...]

    @property
    def written(self) -> list[Argument]:
        return [argument for argument in self.arguments if argument.is_write]


def schema_of(op: str) -> Schema | None:
    """The schema of "aten::add.Tensor"; None if it is not known here."""
    if op in _known()["schemas"]:
        return _schema(op)
    if op not in _others and not op.startswith("aten::") and "torch" in sys.modules:
        _others[op] = _ask_torch(op)
    others = _others.get(op)
    return None if others is None else _read(others)


def overloads_of(name: str) -> tuple[str, ...]:
    """All operators "aten::name" and "aten::name.overload"."""
    return _by_name().get(name, ())


def is_decomposed(op: str) -> bool:
    """Whether PyTorch has a decomposition of it."""
    return op in _known()["decomposed"]


def of_others(ops: set[str]) -> dict[str, Any]:
    """Schemas of operators that are not PyTorch's own, for `learn` in another process."""
    return {op: given for op in ops if (given := _ask_torch(op)) is not None}


def learn(schemas: dict[str, Any]) -> None:
    _others.update(schemas)


def written_down(schema: Any) -> dict[str, Any]:
    """A schema of PyTorch's as JSON values."""
    return {
        "arguments": [
            [
                *(a.name, str(a.type), str(a.real_type), _plain(a.default_value), a.N),
                *(bool(a.alias_info and a.alias_info.is_write), a.is_out),
            ]
            for a in schema.arguments
        ]
    }


def _plain(default: Any) -> Any:
    """A device, say, is nothing that code is made of."""
    if isinstance(default, list | tuple):
        return [_plain(item) for item in default]
    return default if isinstance(default, bool | int | float | str) else None


_others: dict[str, Any] = {}


def _ask_torch(op: str) -> dict[str, Any] | None:
    import torch

    namespace, _, name = op.partition("::")
    base, _, overload = name.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    except AttributeError:
        return None
    return written_down(found._schema)


def _read(given: dict[str, Any]) -> Schema:
    return Schema(tuple(Argument(*a) for a in given["arguments"]))


@functools.cache
def _schema(op: str) -> Schema:
    return _read(_known()["schemas"][op])


@functools.cache
def _known() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(FILE.read_text())
    return known


@functools.cache
def _by_name() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for op in _known()["schemas"]:
        name = op.partition(".")[0]
        found[name] = (*found.get(name, ()), op)
    return found
