"""Metal: Apple's GPUs. Not tried on such a machine yet."""

import sys

import torch

from torch_tiny.portable.kind import C_FUNCTIONS, C_INTEGERS, Kind
from torch_tiny.uops import DType

# Metal has no functions by these names.
_MISSING = (
    "cbrt",
    "erf",
    "erfc",
    "expm1",
    "hypot",
    "lgamma",
    "log1p",
    "logb",
    "remainder",
    "tgamma",
)
_PRECISE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "exp"),
    *("exp10", "exp2", "floor", "fmod", "log", "log10", "log2", "pow", "rint", "round", "sin"),
    *("sinh", "sqrt", "tan", "tanh", "trunc"),
)
_FUNCTIONS = {
    name: f"precise::{text}" if name in _PRECISE else text
    for name, text in C_FUNCTIONS.items()
    if name not in _MISSING
}


class Metal(Kind):
    name = "metal"
    device = "METAL"
    lacks = (torch.float64, torch.complex128)
    advice = "make the tensor in float32, or on the CPU"
    functions = _FUNCTIONS
    integers = C_INTEGERS

    def why_not(self) -> str | None:
        return None if sys.platform == "darwin" else "Metal is part of macOS"

    def template(self, name: str, dtype: DType) -> str:
        if name == "largest_nan":
            return "({0} != {0} ? as_type<float>(0x7fffffff) : {0})"
        return super().template(name, dtype)


KIND = Metal()
