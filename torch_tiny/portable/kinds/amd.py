"""AMD's GPUs, driven by tinygrad itself. Tested in an emulation (tests/emulated), not on one.

Functions are those of ROCm's device library, which its compiler links in: __ocml_exp_f32.
"""

import re
from pathlib import Path

from torch_tiny.portable.kind import C_BINARY, C_FUNCTIONS, C_INTEGERS, C_UNARY, Kind, Opened
from torch_tiny.uops import DType, dtypes

_OPERANDS = dict.fromkeys(C_UNARY, "{0}") | dict.fromkeys(C_BINARY, "{0}, {1}")
_FUNCTIONS = {name: text for name, text in C_FUNCTIONS.items() if name not in _OPERANDS}
_INTEGERS = {
    dtype: (dtype.name, "unsigned long" if dtype.itemsize == 8 else "unsigned int")
    for dtype in C_INTEGERS
}
_PRAGMA = "#pragma clang fp contract(off)"  # a*b+c is rounded twice, as on the CPU
_KFD = Path("/dev/kfd")
_PCI = Path("/sys/bus/pci/devices")
_AMD = "0x1002"


class Amd(Kind):
    name = "amd"
    device = "AMD"
    functions = _FUNCTIONS
    integers = _INTEGERS

    def why_not(self) -> str | None:
        if _KFD.exists() or _AMD in (path.read_text().strip() for path in _PCI.glob("*/vendor")):
            return None
        return "no AMD GPU: there is neither /dev/kfd nor such a device on the bus"

    def open(self, index: int) -> Opened:
        from torch_tiny.uops.amd import renderer_of

        opened = super().open(index)
        opened.renderer = renderer_of(opened.device)
        return opened

    def template(self, name: str, dtype: DType) -> str:
        bits = 64 if dtype == dtypes.float64 else 32
        if name == "largest_nan":
            nan = '("0x7ffffffffffff")' if bits == 64 else 'f("0x3fffff")'
            return f"({{0}} != {{0}} ? __builtin_nan{nan} : {{0}})"
        if name in _OPERANDS:
            return f"__ocml_{name}_f{bits}({_OPERANDS[name]})"
        return super().template(name, dtype)

    def finish(self, text: str) -> str:
        calls = sorted(set(re.findall(r"\b__ocml_(\w+)_f(32|64)\(", text)))
        return "\n".join((_PRAGMA, *(_declared(name, bits) for name, bits in calls), text))


def _declared(name: str, bits: str) -> str:
    kind = "double" if bits == "64" else "float"
    operands = ", ".join(kind for _ in _OPERANDS[name].split(","))
    return f'extern "C" __attribute__((device)) {kind} __ocml_{name}_f{bits}({operands});'


KIND = Amd()
