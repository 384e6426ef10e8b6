"""A portable device as a target of the compiler (engine/target.py has the others)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_tiny.graph import Buffer, Values
from torch_tiny.portable import codegen
from torch_tiny.portable.kind import Kind, Opened
from torch_tiny.uops import UOp


class Portable:
    variants: tuple[str, ...] = ("device",)
    can_check = True
    takes_sizes = False

    def __init__(self, kind: Kind, opened: Opened, one_by_one: bool = False) -> None:
        """one_by_one: build each program when it is made, which tells whose compiler refuses."""
        self._kind = kind
        self._opened = opened
        self._one_by_one = one_by_one

    def generate(self, own: Values, outputs: Mapping[int, UOp], variant: str) -> codegen.Program:  # noqa: ARG002
        program = codegen.generate(self._kind, self._opened, own.buffers, outputs)
        if self._one_by_one:
            self._build([program])
        return program

    def build(self, programs: Mapping[str, Any], library: Path) -> None:  # noqa: ARG002
        self._build(programs.values())

    def times(
        self, _library: Path, _name: str, tried: Sequence[Any], _buffers: list[Buffer]
    ) -> list[float]:
        return [0.0 for _ in tried]

    def kernels(self, program: Any, prefix: str) -> list[dict[str, Any]]:  # noqa: ARG002
        return [vars(kernel) for kernel in program.kernels]

    def _build(self, programs: Iterable[codegen.Program]) -> None:
        """To see that the device takes them."""
        kernels = [kernel for program in programs for kernel in program.kernels]
        codegen.built(self._opened, [(k.name, k.source, len(k.buffers)) for k in kernels])
