"""The operators: what a chain is made of. Those that round as they please only end a chain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .values import DTYPES, EDGE, LENGTH

Operator = Callable[[Tensor, Tensor], Tensor]
"""Of the vector so far, and of another one of its type."""


def _unary(*functions: Callable[[Tensor], Tensor]) -> dict[str, Operator]:
    return {f.__name__: lambda x, _, f=f: f(x) for f in functions}  # type: ignore[misc]


def _binary(*functions: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Operator]:
    return {f.__name__: f for f in functions}


def _rows(x: Tensor) -> Tensor:
    return x.reshape(EDGE, EDGE)


def _index(y: Tensor) -> Tensor:
    """A vector of the program as places in one."""
    return y.to(torch.int64) % LENGTH


_NUMBERS = {"0": 0, "1": 1, "-1": -1, "2": 2, "-3": -3, "100": 100, "half": 0.5, "-0.0": -0.0,
            "inf": float("inf"), "nan": float("nan")}  # fmt: skip


def _with_number(name: str, function: Callable[[Tensor, float], Tensor]) -> dict[str, Operator]:
    return {
        f"{name} {text}": lambda x, _, number=number: function(x, number)  # type: ignore[misc]
        for text, number in _NUMBERS.items()
    }


ELEMENTWISE: dict[str, Operator] = {
    **_unary(
        *(torch.abs, torch.neg, torch.positive, torch.sign, torch.sgn, torch.square),
        *(torch.floor, torch.ceil, torch.trunc, torch.round, torch.frac, torch.signbit),
        *(torch.isnan, torch.isinf, torch.isposinf, torch.isneginf, torch.isfinite),
        *(torch.nan_to_num, torch.logical_not, torch.bitwise_not, torch.relu, F.relu6),
        *(torch.clone, torch.zeros_like, torch.ones_like),
    ),
    "flip": lambda x, _: x.flip(0),
    "roll": lambda x, _: x.roll(3),
    **_binary(
        *(torch.add, torch.sub, torch.rsub, torch.mul, torch.true_divide),
        *(torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.copysign, torch.nextafter),
        *(torch.heaviside, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor),
        *(torch.logical_and, torch.logical_or, torch.logical_xor),
        *(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge),
        *(torch.fmod, torch.remainder, torch.floor_divide),
    ),
    "divide trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add 3y": lambda x, y: torch.add(x, y, alpha=3),
    "sub 3y": lambda x, y: torch.sub(x, y, alpha=3),
    "shift left": lambda x, y: x << (y & 7),
    "shift right": lambda x, y: x >> (y & 7),
    "shift left 31": lambda x, _: x << 31,
    "shift left 7": lambda x, _: x << 7,
    "shift right 3": lambda x, _: x >> 3,
    "power 2": lambda x, _: x**2,
    "power 3": lambda x, _: x**3,
    "power 7": lambda x, _: x**7,
    "power small": lambda x, y: x ** (y & 15) if not x.is_floating_point() else x**2,
    "where": lambda x, y: torch.where(x > y, x, y),
    "where number": lambda x, y: torch.where(x == y, x, -1 if x.dtype != torch.uint8 else 1),
    "masked fill": lambda x, y: x.masked_fill(y > 0, 1),
    "clamp": lambda x, _: x.clamp(-2, 100),
    "clamp by": lambda x, y: torch.clamp(x, min=y),
    "clamp min": lambda x, _: torch.clamp_min(x, 2),
    "clamp max": lambda x, y: torch.clamp_max(x, y),
    "zero": lambda x, y: x.clone().zero_() + y,
    "prelu": lambda x, _: F.prelu(x, torch.full((1,), 0.5, dtype=x.dtype, device=x.device)),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "threshold": lambda x, _: F.threshold(x, 0, 1),
    "hardtanh": lambda x, _: F.hardtanh(x),
    "leaky relu": lambda x, _: F.leaky_relu(x, 0.5),
    "hardshrink": lambda x, _: F.hardshrink(x, 0.5),
    "softshrink": lambda x, _: F.softshrink(x, 0.5),
    "fill": lambda x, y: x.clone().fill_(1) + y,
    "in place": lambda x, y: x.clone().add_(y).mul_(2),
    "with position": lambda x, _: x + torch.arange(LENGTH, device=x.device).to(x.dtype),
    "times position": lambda x, _: x * torch.arange(LENGTH, device=x.device).to(x.dtype),
    **_with_number("add", torch.add),
    **_with_number("mul", torch.mul),
    **_with_number("lt", torch.lt),
    **_with_number("ge", torch.ge),
    **_with_number("eq", torch.eq),
    **_with_number("remainder", torch.remainder),
    **_with_number("fmod", torch.fmod),
    **_with_number("floor divide", torch.floor_divide),
    "rsub 5": lambda x, _: 5 - x,
}

CASTS: dict[str, Operator] = {
    f"to {str(dtype).partition('.')[2]}": lambda x, _, dtype=dtype: x.to(dtype)  # type: ignore[misc]
    for dtype in DTYPES
}

# Sums and products of floats are of two elements: their order is nobody's.
REDUCTIONS: dict[str, Operator] = {
    "sum": lambda x, _: x.sum() if not x.is_floating_point() else _two(x).sum(1),
    "sum rows": lambda x, _: _rows(x).sum(1) if not x.is_floating_point() else _two(x).sum(0),
    "sum own": lambda x, _: _rows(x).sum(0, dtype=x.dtype) if x.dtype not in _FLOATING else x,
    "prod": lambda x, _: _rows(x).prod(1) if not x.is_floating_point() else _two(x).prod(1),
    "mean": lambda x, _: _two(x).mean(1),
    "nansum": lambda x, _: _two(x).nansum(1),
    "sum of one": lambda x, _: x[:, None].sum(1),
    "sum of a row": lambda x, _: x[None].sum((0,)),
    "mean of one": lambda x, _: x[:, None].mean(1),
    "nansum of one": lambda x, _: x[:, None].nansum(1),
    "cumsum of one": lambda x, _: x[:, None].cumsum(1),
    "prod of one": lambda x, _: x[:, None].prod(1),
    "product of one column": lambda x, y: x[:, None] @ y[None, :2],
    "products of one column": lambda x, y: torch.bmm(x[:, None, None], y[:, None, None]),
    "average of one": lambda x, _: F.avg_pool1d(x[None, None], 1),
    "amax": lambda x, _: _rows(x).amax(1),
    "amin": lambda x, _: _rows(x).amin(0),
    "max": lambda x, _: x.max(),
    "min": lambda x, _: x.min(),
    "argmax": lambda x, _: _rows(x).argmax(1),
    "argmin": lambda x, _: _rows(x).argmin(1),
    "max dim": lambda x, _: torch.stack([t.to(x.dtype) for t in _rows(x).max(1)]),
    "any": lambda x, _: _rows(x).any(1),
    "all": lambda x, _: _rows(x).all(0),
    "count": lambda x, _: x.count_nonzero(),
    "cumsum": lambda x, _: x.cumsum(0) if not x.is_floating_point() else _two(x).cumsum(1),
    "cumsum own": lambda x, _: x.cumsum(0, dtype=x.dtype) if x.dtype not in _FLOATING else x,
    "cumprod": lambda x, _: x.cumprod(0) if not x.is_floating_point() else _two(x).cumprod(1),
    "cummax": lambda x, _: _rows(x).cummax(1)[0],
    "cummin": lambda x, _: _rows(x).cummin(1)[0],
    "cummax of zeros": lambda x, _: _rows(_zeros(x)).cummax(1)[0],
    "cummin of zeros": lambda x, _: _rows(_zeros(x)).cummin(1)[0],
    "sort of zeros": lambda x, _: _rows(_zeros(x)).sort(dim=1, stable=True)[0],
    "sort": lambda x, _: _rows(x).sort(dim=1, stable=True)[0],
    "argsort": lambda x, _: _rows(x).argsort(dim=1, stable=True),
    "less sum": lambda x, y: (_rows(x)[:, None] < _rows(y)[None]).sum((0, 1)),
    "equal sum": lambda x, y: (x[:, None] == y[None, :EDGE]).sum(0),
}
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _zeros(x: Tensor) -> Tensor:
    """With the signs of x."""
    return torch.zeros_like(x).copysign(x) if x.is_floating_point() else x


def _some(x: Tensor) -> Tensor:
    """A few places, each of them once: sums at them are of two numbers."""
    return torch.arange(9, device=x.device) * 5


def _two(x: Tensor) -> Tensor:
    return x[: LENGTH // 2 * 2].reshape(-1, 2)


INDEXING: dict[str, Operator] = {
    "index by": lambda x, y: y[_index(x)],
    "index": lambda x, y: x[_index(y)],
    "index from end": lambda x, y: x[_index(y) - LENGTH],
    "index rows": lambda x, y: _rows(x)[_index(y) % EDGE, _index(y) // EDGE],
    "gather": lambda x, y: _rows(x).gather(1, _rows(_index(y)) % EDGE),
    "index select": lambda x, y: x.index_select(0, _index(y)),
    "take": lambda x, y: x.take(_index(y)),
    "positions": lambda x, _: x[torch.arange(LENGTH - 1, -1, -1, device=x.device)],
    "index add": lambda x, y: x.index_add(0, _index(y)[:7], y[:7])
    if x.dtype not in _FLOATING else x,
    "index fill": lambda x, y: x.index_fill(0, _index(y), 1),
    "index copy": lambda x, y: x.index_copy(0, torch.arange(7, device=x.device) * 3, y[:7]),
    "index put": lambda x, y: x.index_put((torch.arange(9, device=x.device),), y[:9]),
    "scatter": lambda x, y: x.scatter(0, torch.arange(9, device=x.device) + 3, y[:9]),
    "scatter columns": lambda x, y: _rows(x).scatter(
        1, (torch.arange(3, device=x.device) * 4).expand(EDGE, 3), _rows(y)[:, 5:8]),
    "scatter rows": lambda x, y: _rows(x).scatter(
        0, (torch.arange(4, device=x.device) * 3)[:, None].expand(4, EDGE), _rows(y)),
    "index add some": lambda x, y: x.index_add(0, _some(x), y[:9]),
    "index put add some": lambda x, y: x.index_put((_some(x),), y[:9], accumulate=True),
    "put add some": lambda x, y: x.put(_some(x), y[:9], accumulate=True),
    "scatter add some": lambda x, y: x.scatter_add(0, _some(x), y),
    "index add rows": lambda x, y: _rows(x).index_add(0, _some(x)[:2], _rows(y)[3:5]),
    "scatter reduce": lambda x, y: x.scatter_reduce(0, _index(y), x, "amax"),
    "index reduce": lambda x, y: x.index_reduce(0, _index(y), x, "amin"),
    "put": lambda x, y: x.put(torch.arange(9, device=x.device) * 2, y[:9]),
    "embedding": lambda x, y: F.embedding(_index(y) % EDGE, _rows(x)),
    "scatter add": lambda x, y: x.scatter_add(0, _index(y), x) if x.dtype not in _FLOATING else x,
    "triu": lambda x, _: _rows(x).triu(1),
    "tril": lambda x, _: _rows(x).tril(-1),
    "pad": lambda x, _: F.pad(x, (2, 3), value=1),
    "one hot": lambda x, _: F.one_hot(_index(x) % 5, 5),
}  # fmt: skip

# Compared up to rounding, and special values exactly.
INEXACT: dict[str, Operator] = {
    **_unary(
        *(torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p),
        *(torch.sqrt, torch.rsqrt, torch.reciprocal, torch.sin, torch.cos, torch.tanh, torch.atan),
        *(torch.asin, torch.acos, torch.sinh, torch.cosh, torch.asinh, torch.acosh, torch.atanh),
        *(torch.erf, torch.erfc, torch.sigmoid, F.silu, F.softplus, F.logsigmoid, F.elu, F.selu),
        *(F.gelu, F.mish, F.hardswish, F.hardsigmoid, torch.deg2rad, torch.rad2deg, torch.angle),
        *(torch.special.entr, torch.special.ndtr, torch.lgamma, torch.sinc, torch.tan, torch.logit),
        *(F.celu, F.tanhshrink),
    ),
    **_binary(torch.atan2, torch.hypot, torch.logaddexp, torch.xlogy, torch.pow),
    **_binary(torch.special.xlog1py),
    "glu": lambda x, y: F.glu(torch.cat((x, y)), 0),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2),
    "softmax": lambda x, _: _rows(x).softmax(1),
    "log softmax": lambda x, _: _rows(x).log_softmax(1),
    "logsumexp": lambda x, _: _rows(x).logsumexp(1),
    "norm": lambda x, _: _two(x).norm(dim=1),
    "norm of all": lambda x, _: torch.norm(_two(x)[0]),
    "renorm": lambda x, _: _two(x).renorm(2, 0, 1.0),
    "distance": lambda x, y: torch.dist(x[:2], y[:2]),
    "var": lambda x, _: _two(x).var(1),
    "logcumsumexp": lambda x, _: _two(x).logcumsumexp(1),
}

_REASONS = {
    "changes how a value is kept, or that it is, and no value": """
        _conj _copy_from _neg_view alias conj_physical contiguous copy detach
    """,
    "asked as what the CPU makes of it": "norm positive relu6 selu special_ndtr square",
    "has the rule of an operator that is asked": """
        _cummax_helper _cummin_helper _index_put_impl _logcumsumexp _unsafe_index _unsafe_index_put
        bitwise_left_shift bitwise_right_shift
    """,
    "0 where the CPU is left with a rounding error: -1 and -1": "logaddexp2",
    "near the largest number their sums overflow, the CPU's running means do not": """
        std std_mean var_mean
    """,
}
LEFT_OUT = {name: why for why, names in _REASONS.items() for name in names.split()}
"""Lowerings that no chain has, and why. Derivatives are compared in tests/test_lower.py."""
