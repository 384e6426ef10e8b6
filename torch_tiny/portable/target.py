"""A portable device as a target of the compiler (engine/target.py has the others)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_tiny.graph import Buffer, Values
from torch_tiny.portable import codegen
from torch_tiny.portable.kind import Kind, Opened
from torch_tiny.uops import UOp


class Portable:
    variants: tuple[str, ...] = ("device",)
    can_check = True

    def __init__(self, kind: Kind, opened: Opened) -> None:
        self._kind = kind
        self._opened = opened

    def generate(self, own: Values, outputs: Mapping[int, UOp], variant: str) -> codegen.Program:  # noqa: ARG002
        return codegen.generate(self._kind, self._opened, own.buffers, outputs)

    def build(self, programs: Mapping[str, Any], library: Path) -> None:
        """Kernels are built as they are generated."""

    def times(
        self, _library: Path, _name: str, tried: Sequence[Any], _buffers: list[Buffer]
    ) -> list[float]:
        return [0.0 for _ in tried]

    def kernels(self, program: Any, prefix: str) -> list[dict[str, Any]]:  # noqa: ARG002
        return [vars(kernel) for kernel in program.kernels]
