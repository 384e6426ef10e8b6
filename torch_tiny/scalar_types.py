"""PyTorch's types of elements; in a process that has not imported torch, their stand-ins."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "torch" in sys.modules:
    import torch
    from torch import dtype as dtype

    bool_, uint8, int8 = torch.bool, torch.uint8, torch.int8
    int16, int32, int64 = torch.int16, torch.int32, torch.int64
    float16, bfloat16 = torch.float16, torch.bfloat16
    float32, float64 = torch.float32, torch.float64
    complex32, complex64 = torch.complex32, torch.complex64
    complex128 = torch.complex128
else:

    class dtype:  # noqa: N801
        """What compiling asks of a torch.dtype; the same in text."""

        def __init__(self, name: str, itemsize: int) -> None:
            self._name = name
            self.itemsize = itemsize
            self.is_complex = name.startswith("complex")
            self.is_floating_point = "float" in name

        def __repr__(self) -> str:
            return f"torch.{self._name}"

    bool_, uint8, int8 = dtype("bool", 1), dtype("uint8", 1), dtype("int8", 1)
    int16, int32, int64 = dtype("int16", 2), dtype("int32", 4), dtype("int64", 8)
    float16, bfloat16 = dtype("float16", 2), dtype("bfloat16", 2)
    float32, float64 = dtype("float32", 4), dtype("float64", 8)
    complex32, complex64 = dtype("complex32", 4), dtype("complex64", 8)
    complex128 = dtype("complex128", 16)
