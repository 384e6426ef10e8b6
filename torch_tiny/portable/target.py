"""A portable device as a target of the compiler (engine/target.py has the others)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.plan import Kernel
from torch_tiny.engine.target import Target
from torch_tiny.portable import codegen
from torch_tiny.portable.kind import Kind, Opened
from torch_tiny.uops import UOp
from torch_tiny.values import Buffer, Values


class Portable(Target):
    can_check = True
    takes_sizes = False
    told = ("source", "groups", "threads", "loops")

    def __init__(self, kind: Kind, opened: Opened, one_by_one: bool = False) -> None:
        """one_by_one: build each program when it is made, which tells whose compiler refuses."""
        self._kind = kind
        self._opened = opened
        self._one_by_one = one_by_one

    def ways(self, _buffers: list[Buffer]) -> Sequence[str]:
        return ("device",)

    def generate(
        self, own: Values, outputs: Mapping[int, UOp], _variant: str
    ) -> Program[codegen.Kernel]:
        program = codegen.generate(self._kind, self._opened, own.buffers, outputs)
        if self._one_by_one:
            codegen.built(self._opened, self.kernels(program, ""))  # to see that it takes them
        return program

    def build(self, _programs: Mapping[str, Any]) -> bytes:
        """Kernels of a whole plan are built together, once it is known."""
        return b""

    def kernels(self, program: Program[codegen.Kernel], _prefix: str) -> list[Kernel]:
        return super().kernels(program, "")
