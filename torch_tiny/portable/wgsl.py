"""Arithmetic in WGSL, whose own functions are too coarse: an error of 2^-11 is allowed for sin.

The compilers behind WebGPU may take floats for real numbers, folding x-x to 0 and (1+x)-1 to x.
What passes through tt_hide is nothing they know: an exclusive or with a zero of the input. In x/x
they do not know either that it is the same on both sides, since tt_apart takes another zero.

A quotient may be 2.5 units off, a root more, and 3e38/3e38 0: both are corrected by what is left of
the dividend, computed exactly in halves of 12 bits.
"""

import functools
import re

from torch_tiny.lower.promote import NoLowering
from torch_tiny.portable.wgsl_floats import FLOATS
from torch_tiny.portable.wgsl_integers import INTEGERS
from torch_tiny.uops import DType, dtypes

# name -> text. {0} and {1} are operands where a text is an expression, not a function.
OPERATORS = {
    "add": "(tt_hide({0})+{1})",
    "sub": "(tt_hide({0}) - {1})",
    "mul": "(tt_hide({0})*tt_hide({1}))",
    "div": "tt_divide({0}, {1})",
    "neg": "tt_neg({0})",
    "differ": "!({0} == {1})",  # != is false for NaN
    "reciprocal": "tt_divide(1.0, {0})",
    **{name: f"{name}({{0}})" for name in ("floor", "ceil", "trunc")},
    "fabs": "abs({0})",
    "rint": "round({0})",
    "integer": "select(-2147483647 - 1, i32({0}), {0} >= -2147483648.0 && {0} < 2147483648.0)",
}

# Compilers drop a conversion there and back.
ROUNDED = {dtypes.float16: "round_half", dtypes.bfloat16: "round_bfloat"}

# Types that are computed in 32 bits, and what brings a result back into their range.
_SMALL = {
    dtypes.int8: "((i32({0})<<24u)>>24u)",
    dtypes.int16: "((i32({0})<<16u)>>16u)",
    dtypes.uint8: "(u32({0})&255u)",
    dtypes.uint16: "(u32({0})&65535u)",
}
_INTEGERS = {"cast": "{0}", "wrap": "{0}", "neg": "(0 - {0})", "<<": "({0}<<u32({1}))"}


def _by_horner(polynomial: re.Match[str]) -> str:
    """polynomial(x: a, b, c), of which c stands alone, in WGSL."""
    x, coefficients = polynomial[1], re.split(r",\s+", polynomial[2])
    return functools.reduce(lambda result, c: f"({result} * {x} + {c})", coefficients)


_ALL = re.sub(r"polynomial\((\w+): ([^)]*)\)", _by_horner, FLOATS + INTEGERS)
BY_NAME = {text.partition("(")[0]: f"fn {text.strip()}" for text in _ALL.split("\nfn ")[1:]}
"""The text of each function."""


def integer(operator: str, dtype: DType) -> str | None:
    """The expression for an operator on a small type; others wrap around by themselves."""
    if dtype not in _SMALL:
        return None
    return _SMALL[dtype].format(_INTEGERS.get(operator, f"({{0}} {operator} {{1}})"))


def template(name: str) -> str:
    """The expression for a float operator."""
    if name in OPERATORS:
        return OPERATORS[name]
    text = BY_NAME.get(f"tt_{name}")
    if text is None:
        raise NoLowering(f"webgpu has no {name}")
    count = text.partition("{")[0].count(": f32")
    return f"tt_{name}({', '.join(f'{{{i}}}' for i in range(count))})"


def needed(text: str) -> dict[str, str]:
    """The functions that a text calls, each after those that it calls itself."""
    found: dict[str, str] = {}
    for name in re.findall(r"\btt_\w+(?=\()", text):
        if name not in found:
            found |= needed(BY_NAME[name].partition("{")[2]) | {name: BY_NAME[name]}
    return found
