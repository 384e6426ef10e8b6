"""Functions of complex infinities, NaN, zeros of both signs and what is very large or small."""

import math

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny
from util import DEVICE

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("everything_compiled"),
]

FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "reciprocal"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh"),
)
SPECIAL = (math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, 1.5, -2.0, 30.0, -100.0)
LARGE = {torch.complex64: 1e30, torch.complex128: 1e200}


@pytest.mark.parametrize("dtype", LARGE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_special_values(name: str, dtype: torch.dtype) -> None:
    """As on the CPU, where its kernels for vectors and for single numbers agree."""
    size = LARGE[dtype]
    parts = (*SPECIAL, size, -size, 1 / size, -1 / size)
    z = torch.tensor([complex(re, im) for re in parts for im in parts], dtype=dtype)
    function = getattr(torch, name)
    many = torch.view_as_real(function(z))
    single = torch.view_as_real(torch.stack([function(one) for one in z]))
    device = z.to(DEVICE)
    function(device).cpu()  # what is seen again is compiled
    got = torch.view_as_real(function(device).cpu())
    agreed = torch.isclose(many, single, equal_nan=True)
    torch.testing.assert_close(got[agreed], many[agreed], equal_nan=True)
    zero = agreed & (many == 0) & (got == 0) & (many.signbit() == single.signbit())
    wrong = z[(zero & (got.signbit() != many.signbit())).any(-1)]
    assert not len(wrong), f"another sign of zero: {wrong}"
