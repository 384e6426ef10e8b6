"""Activations and their backwards, on values computed in float32 where they are half."""

import math

from torch_tiny.lower.arithmetic import (
    absolute,
    exp,
    less_equal,
    log_sigmoid,
    maximum,
    minimum,
    sigmoid,
    softplus,
    tanh,
)
from torch_tiny.lower.movement import concatenate
from torch_tiny.lower.promote import Number, Operand, as_uop, cast, elementwise, mapped
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import full_like, to_math, wrap_dim
from torch_tiny.uops import UOp, call
from torch_tiny.views import cut, int_shape

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def _gelu(x: UOp, approximate: str) -> UOp:
    if approximate == "none":
        return x * 0.5 * (call("erf", x * _SQRT_HALF) + 1.0)
    inner = (x + x * x * x * _TANH_CUBIC) * _TANH_SCALE
    return x * 0.5 * (tanh(inner) + 1.0)


def _gelu_backward(grad: UOp, x: UOp, approximate: str) -> UOp:
    if approximate == "none":
        cdf = (call("erf", x * _SQRT_HALF) + 1.0) * 0.5
        pdf = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (cdf + x * pdf)
    t = tanh((x + x * x * x * _TANH_CUBIC) * _TANH_SCALE)
    inner = (x * x * (3 * _TANH_CUBIC) + 1.0) * _TANH_SCALE
    return grad * ((t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * inner)


def _silu_backward(grad: UOp, x: UOp) -> UOp:
    s = sigmoid(x)
    return grad * s * (x * (1.0 - s) + 1.0)


def _mish_backward(grad: UOp, x: UOp) -> UOp:
    t = tanh(call("log1p", exp(x)))
    return grad * (t + x * sigmoid(x) * (1.0 - t * t))


def _softplus_backward(grad: UOp, x: UOp, beta: UOp, threshold: UOp) -> UOp:
    z = exp(x * beta)
    return (threshold < x * beta).where(grad, grad * z / (z + 1.0))


def _elu(x: UOp, alpha: UOp, scale: UOp, input_scale: UOp) -> UOp:
    return (x < full_like(x, 0)).where(call("expm1", x * input_scale) * (alpha * scale), x * scale)


def _elu_backward(
    grad: UOp, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: UOp
) -> UOp:
    def rule(g: UOp, v: UOp, a: UOp, s: UOp, i: UOp) -> UOp:
        slope = (v + a * s) * i if is_result else exp(v * i) * (a * s * i)
        return less_equal(v, full_like(v, 0)).where(g * slope, g * s)

    return elementwise(rule, grad, x, alpha, scale, input_scale)


def _up_to_six(x: UOp) -> UOp:
    return minimum(maximum(x + 3.0, full_like(x, 0.0)), full_like(x, 6.0))


def _hard_swish_backward(grad: UOp, x: UOp) -> UOp:
    middle = grad * (x / 3.0 + 0.5)
    inside = (x < 3.0).where(middle, grad)
    return less_equal(x, full_like(x, -3.0)).where(full_like(x, 0), inside)


def _between(x: UOp, low: UOp, high: UOp) -> UOp:
    return (low < x) & (x < high)


def _leaky_backward(grad: UOp, x: UOp, slope: Operand, _is_result: bool) -> UOp:
    return elementwise(lambda g, v, s: (v > 0).where(g, g * s), grad, x, slope)


def _logit_backward(grad: UOp, x: UOp, eps: Number | None) -> UOp:
    def rule(g: UOp, v: UOp) -> UOp:
        slope = g / (v * (1.0 - v))
        low = as_uop(0.0 if eps is None else eps, v.dtype)
        outside = (v < low) | (v > 1.0 - low)
        return outside.where(full_like(v, math.nan if eps is None else 0.0), slope)

    return elementwise(rule, grad, x)


def _halves(x: UOp, dim: int) -> tuple[UOp, UOp, int]:
    dim = wrap_dim(dim, x.ndim)
    n = int_shape(x)[dim] // 2
    return cut(x, dim, 0, n), cut(x, dim, n, 2 * n), dim


def _glu_backward(grad: UOp, x: UOp, dim: int) -> UOp:
    a, b, dim = _halves(x, dim)
    first = elementwise(lambda g, q: g * sigmoid(q), grad, b)
    second = elementwise(lambda g, p, q: g * p * sigmoid(q) * (1.0 - sigmoid(q)), grad, a, b)
    return concatenate([first, second], dim)


def _prelu_backward(grad: UOp, x: UOp, weight: UOp) -> tuple[UOp, UOp]:
    return (
        elementwise(lambda g, v, w: (v > 0).where(g, g * w), grad, x, weight),
        elementwise(lambda g, v: (v > 0).where(full_like(g, 0), g * v), grad, x),
    )


def _shrink(x: UOp, by: UOp) -> UOp:
    kept = (x > by).where(x - by, (x < -by).where(x + by, full_like(x, 0)))
    return x.ne(x).where(x, kept)


def _rrelu_backward(
    grad: UOp, x: UOp, noise: UOp, low: Number, high: Number, training: bool, is_result: bool
) -> UOp:
    wide = to_math(grad).dtype
    lower, upper = as_uop(low, wide), as_uop(high, wide)
    even = cast(_leaky_backward(to_math(grad), x, (lower + upper) * 0.5, is_result), grad.dtype)
    if not training:
        return even
    # Bounds that are the same draw no noise.
    return ((upper - lower) > 1e-6).where(elementwise(lambda g, n: g * n, grad, noise), even)


def _clamped(x: UOp, low: Number, high: Number) -> UOp:
    return elementwise(lambda v: minimum(maximum(v, as_uop(low, v.dtype)),
                                         as_uop(high, v.dtype)), x)  # fmt: skip


TABLE: Table = {
    "relu": lambda x: maximum(x, full_like(x, 0)),
    "relu6": lambda x: _clamped(x, 0, 6),
    "hardtanh": _clamped,
    "hardtanh_backward": mapped(lambda g, v, lo, hi: _between(v, lo, hi).where(g, full_like(g, 0))),
    "threshold": lambda x, threshold, value: elementwise(
        lambda v: less_equal(v, as_uop(threshold, v.dtype)).where(as_uop(value, v.dtype), v), x
    ),
    "threshold_backward": lambda grad, x, threshold: elementwise(
        lambda g, v: less_equal(v, as_uop(threshold, v.dtype)).where(full_like(g, 0), g), grad, x
    ),
    "leaky_relu": mapped(lambda x, slope: (x > 0).where(x, x * slope)),
    "leaky_relu_backward": _leaky_backward,
    "gelu": lambda x, approximate: elementwise(lambda v: _gelu(v, approximate), x),
    "gelu_backward": lambda grad, x, approximate: elementwise(
        lambda g, v: _gelu_backward(g, v, approximate), grad, x
    ),
    "silu": mapped(lambda x: x * sigmoid(x)),
    "silu_backward": mapped(_silu_backward),
    "mish": mapped(lambda x: x * tanh(call("log1p", exp(x)))),
    "mish_backward": mapped(_mish_backward),
    "softplus": mapped(softplus),
    "softplus_backward": mapped(_softplus_backward),
    "elu": mapped(_elu),
    "elu_backward": _elu_backward,
    "celu": mapped(lambda v, a: less_equal(v, full_like(v, 0)).where(call("expm1", v / a) * a, v)),
    "selu": lambda x: elementwise(_elu, x, 1.6732632423543772, 1.0507009873554805, 1.0),
    "hardsigmoid": mapped(lambda x: _up_to_six(x) * (1 / 6)),
    "hardsigmoid_backward": mapped(
        lambda g, v: _between(v, full_like(v, -3.0), full_like(v, 3.0)).where(
            g * (1 / 6), full_like(g, 0)
        )
    ),
    "hardswish": mapped(lambda x: x * _up_to_six(x) / 6.0),
    "hardswish_backward": mapped(_hard_swish_backward),
    "log_sigmoid_forward": lambda x: (
        elementwise(log_sigmoid, x),
        elementwise(lambda v: exp(-absolute(v)), x),
    ),
    "log_sigmoid_backward": lambda grad, x, _: elementwise(lambda g, v: g * sigmoid(-v), grad, x),
    "tanh_backward": mapped(lambda grad, y: grad * (1.0 - y * y)),
    "sigmoid_backward": mapped(lambda grad, y: grad * (1.0 - y) * y),
    "logit_backward": _logit_backward,
    "glu": lambda x, dim: elementwise(lambda p, q: p * sigmoid(q), *_halves(x, dim)[:2]),
    "glu_backward": _glu_backward,
    "softshrink": mapped(_shrink),
    "hardshrink": mapped(lambda x, by: ((-by <= x) & less_equal(x, by)).where(full_like(x, 0), x)),
    **dict.fromkeys(
        ("softshrink_backward", "hardshrink_backward"),
        mapped(lambda g, x, by: (less_equal(-by, x) & less_equal(x, by)).where(full_like(g, 0), g)),
    ),
    "_prelu_kernel": mapped(lambda x, weight: (x > 0).where(x, x * weight)),
    "_prelu_kernel_backward": _prelu_backward,
    "rrelu_with_noise_backward": _rrelu_backward,
}
