"""Operators on complex tensors: what is linear takes the parts one by one, the rest is written."""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch_tiny import scalar_types as types
from torch_tiny.lower import creation, elementwise, index, masks, matmul, movement, reduce
from torch_tiny.lower.arithmetic import absolute
from torch_tiny.lower.complex_math import (
    COMPLEX_FUNCTIONS,
    any_nan,
    choose,
    complex_power,
    filled,
    is_zero,
)
from torch_tiny.lower.complex_parts import (
    by_parts,
    dtype_of_parts,
    number_for_real,
    or_real,
    picked_parts,
    real_of,
)
from torch_tiny.lower.complex_value import (
    PARTS,
    Complex,
    as_complex,
    from_both,
    part_dtype,
    promoted,
)
from torch_tiny.lower.elementwise import both
from torch_tiny.lower.promote import Lifted, NoLowering, Operand, as_uop, cast
from torch_tiny.lower.rule import Function, Results, Rule, Table
from torch_tiny.lower.shapes import DTYPES, broadcast, full, kept_shape, pad, total, wrap_dims
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import cut, int_shape

Given = Operand | Complex


# --- elementwise ---


def _function(function: Callable[[Complex], Complex]) -> Function:
    return lambda z: _rounded(function(*promoted(z)), z)


def _rounded(z: Complex, *like: Given) -> Complex:
    part = part_dtype(*like)
    return z.each(lambda x: cast(x, part))


def _binary(function: Callable[[Complex, Complex], Complex]) -> Function:
    return lambda a, b: _rounded(function(*promoted(a, b)), a, b)


def _scaled(
    function: Callable[[Complex, Complex], Complex], a: Given, b: Given, alpha: Given
) -> Complex:
    # PyTorch multiplies by an alpha of 1 as well: an infinite y has a NaN beside it then.
    x, y, factor = promoted(a, b, _as_number(alpha))
    return _rounded(function(x, factor * y), a, b)


def _as_number(x: Given) -> Given:
    """A number beside tensors; never what decides the dtype."""
    return x if isinstance(x, Complex) else Lifted(as_uop(x, dtypes.float64), float)


def _power(a: Given, b: Given) -> Complex:
    if not isinstance(b, UOp | Complex | Lifted) and b == 2:
        return _rounded(COMPLEX_FUNCTIONS["square"](*promoted(a)), a)
    return _rounded(complex_power(*promoted(a, b)), a, b)


def _power_by_number(a: Given, b: Given) -> Complex:
    """PyTorch does not look at the base where the number is 0."""
    x, exponent = promoted(a, b)
    return choose(is_zero(exponent), filled(x, 1.0), _power(a, b))


def _divide(a: Given, b: Given, rounding: str | None = None) -> Complex:
    if rounding is not None:
        raise NoLowering("complex numbers are not rounded")
    x, y = promoted(a, b)
    return _rounded(x / y, a, b)


def _equal(a: Given, b: Given) -> UOp:
    x, y = promoted(a, b)
    return x.re.eq(y.re) & x.im.eq(y.im)


def _truth(x: Given) -> UOp:
    return is_zero(x).logical_not() if isinstance(x, Complex) else as_uop(x, dtypes.bool)


def _abs(z: Complex) -> UOp:
    return cast(promoted(z)[0].abs(), z.re.dtype)


def _where(condition: UOp, yes: Given, no: Given) -> Complex:
    part = part_dtype(yes, no)
    return choose(cast(condition, dtypes.bool), as_complex(yes, part), as_complex(no, part))


def _with_term(
    function: Callable[[Complex, Complex], Complex], x: Given, a: Given, b: Given, value: Given
) -> Complex:
    """x + value*a*b and the like."""
    p, q, r, factor = promoted(x, a, b, _as_number(value))
    return _rounded(p + function(factor * q, r), x, a, b)


def _lerp(start: Given, end: Given, weight: Given) -> Complex:
    a, b, w = promoted(start, end, weight)
    near = a + w * (b - a)
    far = b - (b - a) * (filled(w, 1.0) - w)
    return _rounded(choose(w.abs() < 0.5, near, far), start, end)


def _slope(function: Callable[[Complex], Complex]) -> Function:
    """A gradient, where the derivative is a function of the result."""
    return _binary(lambda grad, out: grad * function(out).conj())


def _complex(re: UOp, im: UOp) -> Complex:
    re, im = broadcast(re, im)
    return Complex(re, im)


# --- conversions and creation ---


def _to_copy(x: UOp | Complex, dtype: types.dtype | None, *_: Any) -> UOp | Complex:
    if dtype is None:
        return x
    if dtype in PARTS:
        return as_complex(x, DTYPES[PARTS[dtype]])
    return real_of(x, DTYPES[dtype])


def _copy(x: UOp | Complex, source: Given) -> UOp | Complex:
    if isinstance(x, Complex):
        return _copied(x, source)
    return real_of(source, x.dtype).expand(x.shape)


def _copied(x: Complex, source: Given) -> Complex:
    return as_complex(source, x.re.dtype).expand(x.shape)


def _filled(name: str, fill: Callable[..., Complex]) -> Function:
    real = elementwise.TABLE[name]
    assert not isinstance(real, Rule)
    return or_real(real, fill)


def _created(name: str, *values: int) -> Function:
    """A tensor of numbers: real ones have an imaginary part of 0."""
    rule = creation.TABLE[name]

    def apply(*args: Any) -> Any:
        asked = [a for a in args if isinstance(a, types.dtype)]
        if not asked[0].is_complex if asked else isinstance(args[0], UOp):
            is_like = isinstance(args[0], Complex) and 0 not in values
            first = args[0].re if is_like else args[0]
            dtype = DTYPES[asked[0]] if asked else first.dtype
            return rule(*(number_for_real(given, dtype) for given in (first, *args[1:])))
        if values:
            return by_parts(rule, *values)(*args)
        re = rule(*picked_parts(args, "re"))
        return Complex(re, re.const_like(0))

    return apply


def _joined(
    join: Callable[[Sequence[UOp], int], UOp], tensors: Sequence[UOp | Complex], dim: int = 0
) -> Complex:
    part = part_dtype(*tensors)
    whole = [as_complex(t, part) for t in tensors]
    return Complex(join([t.re for t in whole], dim), join([t.im for t in whole], dim))


# --- products and reductions ---


def _product(rule: Function, a: Complex, b: Complex) -> Complex:
    """What is linear in both arguments."""
    part = part_dtype(a, b)
    x, y = as_complex(a, part), as_complex(b, part)
    return Complex(rule(x.re, y.re) - rule(x.im, y.im), rule(x.re, y.im) + rule(x.im, y.re))


def _added(rule: Function, x: Given, a: Complex, b: Complex, beta: Given, alpha: Given) -> Complex:
    """beta*x + alpha*product; a beta of 0 ignores x, NaN and all."""
    found = _product(rule, a, b)
    part = found.re.dtype
    scaled = found * as_complex(alpha, part)
    if not isinstance(beta, Lifted | Complex) and beta == 0:
        return scaled
    return as_complex(x, part) * as_complex(beta, part) + scaled


def complex_product(
    x: Given, dims: Any = None, keepdim: bool = False, dtype: types.dtype | None = None
) -> Complex:
    """Pairs, and pairs of pairs; times one, which makes NaN of an infinity, as on the CPU."""
    part = dtype_of_parts((dtype,)) if dtype is not None else part_dtype(x)
    z = as_complex(x, part)
    shape = int_shape(z.re)
    for dim in wrap_dims(dims, z.ndim):
        if z.shape[dim] == 0:
            one = kept_shape(z.shape, (dim,), True)
            z = Complex(full(one, 1, part), full(one, 0, part))
        while (n := z.shape[dim]) > 1:
            around = [(0, n % 2) if d == dim else (0, 0) for d in range(z.ndim)]
            re, im, half = pad(z.re, around, 1.0), pad(z.im, around, 0.0), (n + n % 2) // 2
            first, second = (
                Complex(cut(re, dim, start, start + half), cut(im, dim, start, start + half))
                for start in (0, half)
            )
            z = first * second
    kept = kept_shape(shape, wrap_dims(dims, z.ndim), keepdim)
    return (z * Complex(full((), 1, part), full((), 0, part))).reshape(kept)


def _variance(z: Complex, *how: Any) -> UOp:
    return reduce.var_mean(z.re, *how)[0] + reduce.var_mean(z.im, *how)[0]


def _deviation(z: Complex, *how: Any) -> UOp:
    return call("sqrt", _variance(z, *how))


def _with_mean(
    spread: Callable[..., UOp], z: Complex, dims: Any, correction: Any, keepdim: bool
) -> Results:
    """The variance or deviation, and the mean."""
    middle = z.each(lambda part: reduce.mean(part, dims, keepdim))
    return spread(z, dims, correction, keepdim), middle


def _index_add(x: UOp | Complex, dim: int, at: UOp, source: UOp | Complex, alpha: Given) -> Any:
    if isinstance(x, UOp) and isinstance(source, UOp):
        return index.index_add(x, dim, at, source, number_for_real(alpha, x.dtype))
    assert isinstance(x, Complex) and isinstance(source, Complex)
    scaled = source * as_complex(alpha, source.re.dtype)
    return by_parts(index.index_add)(x, dim, at, scaled, 1)


def _reduction(name: str, of: Callable[[Complex], UOp]) -> Function:
    """What only depends on something real of each number."""
    rule = reduce.PLAIN[name]
    return lambda z, *rest: rule(of(z), *picked_parts(rest, "re"))


TABLE: Table = {
    "complex": _complex,
    "polar": lambda size, angle: Complex(size * call("cos", angle), size * call("sin", angle)),
    "view_as_complex": lambda x: from_both(x, x.ndim - 1),
}
COLUMN: dict[str, Function] = {
    "nansum": lambda z, *how: by_parts(reduce.sums)(
        choose(any_nan(z), filled(z, 0.0), z), *how
    ),
    "nonzero_static": lambda z, *rest: masks.nonzero_static(_truth(z), *rest),
    "cat": partial(_joined, movement.concatenate),
    "stack": partial(_joined, movement.stack),
    **{name: _function(function) for name, function in COMPLEX_FUNCTIONS.items()},
    "abs": _abs,
    "angle": lambda z: cast(promoted(z)[0].angle(), z.re.dtype),
    "isinf": lambda z: absolute(z.re).eq(math.inf) | absolute(z.im).eq(math.inf),
    "isnan": any_nan,
    "nan_to_num": lambda z, *bounds: z.each(lambda part: elementwise.nan_to_num(part, *bounds)),
    **both("add", partial(_scaled, operator.add)),
    **both("sub", partial(_scaled, operator.sub)),
    **both("rsub", lambda a, b, alpha: _scaled(operator.sub, b, a, alpha)),
    **both("mul", _binary(operator.mul)),
    **dict.fromkeys(("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode"), _divide),
    **dict.fromkeys(("pow.Tensor_Tensor", "pow.Scalar"), _power),
    "pow.Tensor_Scalar": _power_by_number,
    **both("eq", _equal),
    **both("ne", lambda a, b: _equal(a, b).logical_not()),
    "logical_not": lambda a: _truth(a).logical_not(),
    "logical_and": lambda a, b: _truth(a) & _truth(b),
    "logical_or": lambda a, b: _truth(a) | _truth(b),
    "logical_xor": lambda a, b: _truth(a) ^ _truth(b),
    **{f"where.{kind}": _where for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **both(
        "masked_fill",
        _filled(
            "masked_fill.Scalar",
            lambda x, mask, value: choose(mask, as_complex(value, x.re.dtype), x),
        ),
    ),
    **{name: _filled(name, _copied) for name in ("fill.Scalar", "fill.Tensor")},
    "zero": lambda x: filled(x, 0.0),
    "addcmul": partial(_with_term, operator.mul),
    "addcdiv": partial(_with_term, operator.truediv),
    **both("lerp", _lerp),
    "tanh_backward": _slope(lambda y: filled(y, 1.0) - y * y),
    "sigmoid_backward": _slope(lambda y: (filled(y, 1.0) - y) * y),
    **dict.fromkeys(("_conj", "_conj_physical", "conj_physical"), lambda z: z.conj()),
    "_neg_view": lambda z: -z,
    "view_as_real": lambda z: movement.stack([z.re, z.im], -1),
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "_to_copy": _to_copy,
    "copy": lambda x, source, _: _copy(x, source),
    "_copy_from": lambda source, x, _: _copy(x, source),
    **dict.fromkeys(("clone", "contiguous", "alias", "detach", "lift_fresh"), lambda z, *_: z),
    **{name: _created(name) for name in (
        "zeros", "ones", "_efficientzerotensor", "zeros_like", "ones_like", "new_zeros",
        "new_ones", "eye", "eye.m",
    )},
    **{name: _created(name, place) for name, place in (
        ("full", 1), ("full_like", 1), ("new_full", 2), ("scalar_tensor", 0),
    )},
    "linspace": _created("linspace", 0, 1),
    **dict.fromkeys(("mm", "bmm"), partial(_product, matmul.rounded)),
    "mv": partial(_product, matmul.by_vector),
    "dot": partial(_product, matmul.dot),
    "vdot": lambda a, b: _product(matmul.dot, a.conj(), b),
    **dict.fromkeys(("addmm", "baddbmm"), partial(_added, matmul.rounded)),
    "addbmm": partial(_added, lambda a, b: total(matmul.matmul(a, b), (0,))),
    "addmv": partial(_added, matmul.by_vector),
    "addr": partial(_added, lambda a, b: a.unsqueeze(1) * b),
    "prod": lambda x, dtype: complex_product(x, None, False, dtype),
    "prod.dim_int": complex_product,
    **reduce.unbiased("var", _variance),
    **reduce.unbiased("std", _deviation),
    "var_mean.correction": partial(_with_mean, _variance),
    "std_mean.correction": partial(_with_mean, _deviation),
    "index_add": _index_add,
    **{name: _reduction(name, _abs) for name in (
        "linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype",
        "norm.ScalarOpt_dtype",
    )},
    **{name: _reduction(name, _truth) for name in (
        "any", "any.dim", "any.dims", "all", "all.dim", "all.dims", "count_nonzero",
        "count_nonzero.dim_IntList",
    )},
}  # fmt: skip
