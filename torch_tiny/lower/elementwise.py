"""Elementwise operators: one entry is the operator on values that are promoted already."""

import math
import operator
from collections.abc import Callable
from functools import partial

from torch_tiny.lower.arithmetic import (
    absolute,
    add,
    floor_divide,
    fmod,
    int_power,
    int_power_by,
    is_nan,
    less_equal,
    log,
    log_add,
    maximum,
    minimum,
    mul,
    next_after,
    remainder,
    shift,
    sigmoid,
    signbit,
    trunc_divide,
)
from torch_tiny.lower.promote import (
    HALVES,
    LARGEST,
    Lifted,
    Number,
    Operand,
    as_uop,
    cast,
    elementwise,
    elementwise_float,
    filling,
    is_float,
    mapped,
    math_dtype,
    result_dtype,
)
from torch_tiny.lower.rule import Function, Table
from torch_tiny.lower.shapes import broadcast, full_like, to_dtype
from torch_tiny.uops import UOp, call, dtypes

Unary = Callable[[UOp], UOp]
Binary = Callable[[UOp, UOp], UOp]


def _scaled(function: Binary, a: Operand, b: Operand, alpha: Number) -> UOp:
    """a + alpha*b and the like."""
    if alpha is True or (not isinstance(alpha, Lifted) and alpha == 1):
        return elementwise(function, a, b, rounded=True)
    dtype = result_dtype(a, b)
    factor = cast(as_uop(alpha, dtype), math_dtype(dtype))
    return elementwise(lambda x, y: function(x, mul(factor, y)), a, b, rounded=True)


def divide(a: Operand, b: Operand, rounding: str | None = None) -> UOp:
    if rounding is None:
        return elementwise_float(lambda x, y: x / y, a, b)
    dtype = result_dtype(a, b)
    if rounding == "trunc" and dtype in HALVES and isinstance(b, UOp) and b.ndim:
        # The CPU's kernel for two tensors divides in the half type.
        return elementwise(lambda x, y: call("trunc", (x / y).cast(dtype).cast(x.dtype)), a, b)
    return elementwise(floor_divide if rounding == "floor" else trunc_divide, a, b)


def power(a: Operand, b: Operand) -> UOp:
    """The exponents that PyTorch's kernel treats apart, and pow or repeated squares for others."""
    dtype = result_dtype(a, b)
    if not is_float(dtype):
        if isinstance(b, UOp | Lifted):
            return elementwise(int_power_by, a, b)
        return int_power(as_uop(a, dtype), int(b))
    special = _POWERS.get(float(b)) if isinstance(b, int | float) else None
    if special is not None:
        return elementwise(lambda x, _: special(x), a, b)
    if isinstance(b, Lifted) and dtype != dtypes.float16:
        return elementwise(_power_by_number, a, b, rounded=True)
    return elementwise(lambda x, y: call("pow", x, y), a, b, rounded=True)


def _power_by_number(x: UOp, exponent: UOp) -> UOp:
    """Where it is known only at run time. For -inf and -0.0 roots are not what pow gives."""
    root = call("sqrt", x)
    inverse = exponent.eq(-0.5).where(root.reciprocal(), call("pow", x, exponent))
    return exponent.eq(0.5).where(root, inverse)


_POWERS: dict[float, Unary] = {
    0.0: lambda x: full_like(x, 1.0),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -1.0: lambda x: x.reciprocal(),
    -2.0: lambda x: (x * x).reciprocal(),
    0.5: lambda x: call("sqrt", x),
    -0.5: lambda x: call("sqrt", x).reciprocal(),
}


def clamp(x: UOp, low: Operand | None, high: Operand | None) -> UOp:
    bounds = [b for b in (low, high) if b is not None]
    if low is not None and high is not None:
        return elementwise(lambda v, lo, hi: minimum(maximum(v, lo), hi), x, low, high)
    return elementwise(maximum if high is None else minimum, x, *bounds)


# --- rounding, signs ---


def _rounded(name: str) -> Unary:
    return lambda x: elementwise(lambda v: call(name, v), x) if is_float(x.dtype) else x


def _round_decimals(x: UOp, decimals: int) -> UOp:
    if not is_float(x.dtype) or decimals == 0:
        return _rounded("rint")(x)
    ten = 10.0 ** abs(decimals)
    if decimals > 0:
        return elementwise(lambda v: call("rint", v * ten) / ten, x)
    return elementwise(lambda v: call("rint", v / ten) * ten, x)


def _sign(x: UOp) -> UOp:
    if x.dtype == dtypes.bool:
        return x
    one = full_like(x, 1)
    negative = full_like(x, 0) if x.dtype == dtypes.uint8 else (x < 0).where(full_like(x, -1), 0)
    return is_nan(x).where(full_like(x, 0), (x > 0).where(one, negative))


def nan_to_num(x: UOp, nan: Number | None, high: Number | None, low: Number | None) -> UOp:
    if not is_float(x.dtype):
        return x
    top = LARGEST[x.dtype]

    def replaced(v: UOp) -> UOp:
        v2 = is_nan(v).where(as_uop(0.0 if nan is None else nan, v.dtype), v)
        v2 = v.eq(math.inf).where(as_uop(top if high is None else high, v.dtype), v2)
        return v.eq(-math.inf).where(as_uop(-top if low is None else low, v.dtype), v2)

    return elementwise(replaced, x)


def _float_test(test: Unary, x: UOp) -> UOp:
    """What no integer is."""
    if not is_float(x.dtype):
        return full_like(x, False, dtypes.bool)
    return test(x.cast(math_dtype(x.dtype)))


# --- conversions ---


def copy(x: UOp, source: Operand) -> UOp:
    return as_uop(source, x.dtype).expand(x.shape)


def where(condition: UOp, yes: Operand, no: Operand) -> UOp:
    dtype = result_dtype(yes, no)
    condition = cast(condition, dtypes.bool)
    return condition.where(as_uop(yes, dtype), as_uop(no, dtype))


def _lerp(a: UOp, b: UOp, w: UOp) -> UOp:
    """As PyTorch: from the nearer end, so that weight 1 gives `b` exactly."""
    return (absolute(w) < 0.5).where(a + w * (b - a), b - (b - a) * (1.0 - w))


def _xlogy(log_name: str) -> Binary:
    return lambda x, y: is_nan(y).where(y, x.eq(0).where(full_like(x, 0), x * call(log_name, y)))


def _logit(x: UOp, eps: Number | None) -> UOp:
    def rule(v: UOp) -> UOp:
        if eps is not None:
            low = as_uop(eps, v.dtype)
            high = 1.0 - low
            v = (v < low).where(low, (v > high).where(high, v))  # where they cross, the lower one
        return log(v / (1.0 - v))

    return elementwise_float(rule, x)


def _float_unary(function: Unary) -> Function:
    return lambda x: elementwise_float(function, x)


def _binary(function: Binary) -> Function:
    return lambda a, b: elementwise(function, a, b, rounded=True)


def _binary_float(function: Binary) -> Function:
    return lambda a, b: elementwise_float(function, a, b, rounded=True)


def _compared(function: Binary) -> Function:
    return lambda a, b: elementwise(function, a, b, result=dtypes.bool, rounded=True)


def _truth(function: Binary) -> Function:
    return lambda a, b: function(cast(a, dtypes.bool), cast(b, dtypes.bool))


def both(name: str, rule: Function, *more: str) -> dict[str, Function]:
    """The same rule for a tensor and for a number as the second operand."""
    return {f"{name}.{overload}": rule for overload in ("Tensor", "Scalar", *more)}


def _shifts(side: str, operator: str) -> dict[str, Function]:
    rule = _binary(lambda a, b: shift(a, b, left=side == "left"))
    return {
        **both(f"bitwise_{side}_shift", rule, "Tensor_Scalar", "Scalar_Tensor"),
        **both(operator, rule),
    }


_C_FUNCTIONS = """
    exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf erfc lgamma
"""

TABLE: Table = {
    **{name: _float_unary(partial(call, name)) for name in _C_FUNCTIONS.split()},
    "sigmoid": _float_unary(sigmoid),
    "rsqrt": _float_unary(lambda x: call("sqrt", x).reciprocal()),
    "reciprocal": _float_unary(lambda x: x.reciprocal()),
    "sinc": _float_unary(
        lambda x: x.eq(0).where(full_like(x, 1.0), call("sin", x * math.pi) / (x * math.pi))
    ),
    "logit": _logit,
    "special_entr": _float_unary(
        lambda x: is_nan(x).where(
            x, (x > 0).where(-x * log(x), x.eq(0).where(full_like(x, 0), -math.inf))
        )
    ),
    "special_ndtr": _float_unary(lambda x: call("erfc", x * -math.sqrt(0.5)) * 0.5),
    "neg": mapped(lambda x: -x),
    "positive": lambda x: x,
    "conj_physical": lambda x: x,  # of real numbers; in place it is recorded for them too
    "abs": mapped(absolute),
    **dict.fromkeys(("sign", "sgn"), mapped(_sign)),
    "square": mapped(lambda x: x * x),
    **{name: _rounded(name) for name in ("floor", "ceil", "trunc")},
    "round": _rounded("rint"),
    "round.decimals": _round_decimals,
    "frac": mapped(lambda x: x - call("trunc", x)),
    "signbit": signbit,
    "isnan": partial(_float_test, is_nan),
    "isinf": partial(_float_test, lambda x: absolute(x).eq(math.inf)),
    "isposinf": partial(_float_test, lambda x: x.eq(math.inf)),
    "isneginf": partial(_float_test, lambda x: x.eq(-math.inf)),
    "nan_to_num": nan_to_num,
    "logical_not": lambda x: cast(x, dtypes.bool).logical_not(),
    "bitwise_not": lambda x: ~x,
    **both("add", partial(_scaled, add)),
    **both("sub", partial(_scaled, operator.sub)),
    **both("rsub", lambda a, b, alpha: _scaled(operator.sub, b, a, alpha)),
    # A number stays as precise as it is in products and quotients.
    **both("mul", lambda a, b: elementwise(mul, a, b)),
    **both("div", divide),
    **dict.fromkeys(("div.Tensor_mode", "div.Scalar_mode"), divide),
    **dict.fromkeys(("floor_divide", "floor_divide.Scalar"), lambda a, b: divide(a, b, "floor")),
    **both("remainder", _binary(remainder), "Scalar_Tensor"),
    **both("fmod", _binary(fmod)),
    **dict.fromkeys(("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar"), power),
    "maximum": _binary(maximum),
    "minimum": _binary(minimum),
    "fmax": _binary(lambda a, b: call("fmax", a, b) if is_float(a.dtype) else maximum(a, b)),
    "fmin": _binary(lambda a, b: call("fmin", a, b) if is_float(a.dtype) else minimum(a, b)),
    "atan2": _binary_float(lambda a, b: call("atan2", a, b)),
    "hypot": _binary(lambda a, b: call("hypot", a, b)),
    "nextafter": lambda a, b: next_after(*broadcast(a, b)),
    **both("copysign", lambda a, b: elementwise_float(lambda x, y: call("copysign", x, y), a, b)),
    "logaddexp": _binary(log_add),
    "logaddexp2": _binary(lambda a, b: log_add(a, b, "exp2", 1 / math.log(2))),
    **dict.fromkeys(
        ("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other"), _binary_float(_xlogy("log"))
    ),
    **dict.fromkeys(
        ("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
        _binary_float(_xlogy("log1p")),
    ),
    "heaviside": lambda a, b: a.eq(0).where(b, cast(a > 0, a.dtype)),
    **both("eq", _compared(lambda a, b: a.eq(b))),
    **both("ne", _compared(lambda a, b: a.ne(b))),
    **both("lt", _compared(operator.lt)),
    **both("le", _compared(less_equal)),
    **both("gt", _compared(lambda a, b: b < a)),
    **both("ge", _compared(lambda a, b: less_equal(b, a))),
    **both("bitwise_and", _binary(lambda a, b: a & b), "Scalar_Tensor"),
    **both("bitwise_or", _binary(lambda a, b: a | b), "Scalar_Tensor"),
    **both("bitwise_xor", _binary(lambda a, b: a ^ b), "Scalar_Tensor"),
    **_shifts("left", "__lshift__"),
    **_shifts("right", "__rshift__"),
    "logical_and": _truth(lambda a, b: a & b),
    "logical_or": _truth(lambda a, b: a | b),
    "logical_xor": _truth(lambda a, b: a ^ b),
    **dict.fromkeys(("clamp", "clamp.Tensor"), clamp),
    **dict.fromkeys(("clamp_min", "clamp_min.Tensor"), lambda x, low: clamp(x, low, None)),
    **dict.fromkeys(("clamp_max", "clamp_max.Tensor"), lambda x, high: clamp(x, None, high)),
    **dict.fromkeys(("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar"), where),
    **both("lerp", lambda start, end, weight: elementwise(_lerp, start, end, weight)),
    "addcmul": lambda x, a, b, value: elementwise(
        lambda p, q, r: p + as_uop(value, p.dtype) * q * r, x, a, b
    ),
    "addcdiv": lambda x, a, b, value: elementwise(
        lambda p, q, r: p + as_uop(value, p.dtype) * q / r, x, a, b
    ),
    "_to_copy": lambda x, dtype, *_: cast(x, to_dtype(dtype, x.dtype)),
    "_conj": lambda x: x,
    "_neg_view": mapped(lambda x: -x),
    "copy": lambda x, source, _: copy(x, source),
    "_copy_from": lambda source, x, _: copy(x, source),
    **dict.fromkeys(("clone", "contiguous", "alias", "detach", "lift_fresh"), lambda x, *_: x),
    "fill.Scalar": lambda x, value: full_like(x, value),
    "fill.Tensor": lambda x, value: copy(x, value),
    "zero": lambda x: full_like(x, 0),
    **both("masked_fill", lambda x, mask, value: mask.where(filling(value, x.dtype), x)),
    "deg2rad": _float_unary(lambda x: x * (math.pi / 180)),
    "rad2deg": _float_unary(lambda x: x * (180 / math.pi)),
}
