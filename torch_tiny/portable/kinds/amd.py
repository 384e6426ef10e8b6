"""AMD's GPUs, driven by tinygrad itself. Not tried on such a machine yet.

Functions that clang does not compile to instructions are missing, so what needs them runs on the
host: the names of the device library are to be added here.
"""

from pathlib import Path

from torch_tiny.portable.kind import C_FUNCTIONS, Kind
from torch_tiny.uops import DType, dtypes

_BUILTIN = ("ceil", "copysign", "fabs", "floor", "rint", "sqrt", "trunc")
_FUNCTIONS = {
    name: f"__builtin_{text}" if name in _BUILTIN else text
    for name, text in C_FUNCTIONS.items()
    if name in _BUILTIN or not text.startswith(f"{name}(")
}
_INTEGERS = {
    dtypes.int8: ("signed char", "unsigned int"),
    dtypes.uint8: ("unsigned char", "unsigned int"),
    dtypes.int16: ("short", "unsigned int"),
    dtypes.uint16: ("unsigned short", "unsigned int"),
    dtypes.int32: ("int", "unsigned int"),
    dtypes.int64: ("long", "unsigned long"),
}


class Amd(Kind):
    name = "amd"
    device = "AMD"
    functions = _FUNCTIONS
    integers = _INTEGERS

    def why_not(self) -> str | None:
        return None if Path("/dev/kfd").exists() else "no AMD GPU: /dev/kfd does not exist"

    def template(self, name: str, dtype: DType) -> str:
        if name == "largest_nan":
            wide = dtype == dtypes.float64
            nan = '("0x7ffffffffffff")' if wide else 'f("0x3fffff")'
            return f"({{0}} != {{0}} ? __builtin_nan{nan} : {{0}})"
        return super().template(name, dtype)


KIND = Amd()
