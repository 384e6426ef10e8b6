"""Orthogonal polynomials of a degree that comes with the data, by their recurrences.

As the CPU computes them, up to a degree of 64; the Chebyshev ones beyond it inside [-1, 1] too.
"""

from collections.abc import Callable
from functools import partial

from torch_tiny.lower.arithmetic import absolute, less_equal
from torch_tiny.lower.conditions import require
from torch_tiny.lower.promote import elementwise_float
from torch_tiny.lower.rule import Function
from torch_tiny.lower.shapes import full_like
from torch_tiny.uops import UOp, call

_MOST = 64
Recurrence = Callable[[UOp, UOp, UOp, float], UOp]
"""x, the last one, the one before, and its degree."""
Edge = Callable[[UOp, UOp, UOp], UOp]
"""x, the degree, whether it is even: the value where |x| is 1."""


def _recurrence(x: UOp, degree: UOp, first: UOp, step: Recurrence) -> UOp:
    before, last = full_like(x, 1.0), first
    result = degree.eq(0).where(before, last)
    for k in range(1, _MOST):
        before, last = last, step(x, last, before, float(k))
        result = (degree > float(k)).where(last, result)
    return (degree < 0).where(full_like(x, 0.0), result)


def _polynomial(
    first: Callable[[UOp], UOp], step: Recurrence, edge: Edge | None = None,
    wave: Callable[[UOp, UOp], UOp] | None = None, shifted: bool = False,
) -> Function:  # fmt: skip
    """`wave`: the closed form of the angle whose cosine is x, used for higher degrees."""

    def rule(x: UOp, n: UOp) -> UOp:
        degree = call("trunc", n)
        z = x * 2.0 - 1.0 if shifted else x
        inside, is_low = absolute(z) < 1.0, less_equal(degree, full_like(degree, float(_MOST)))
        require(is_low if wave is None else inside | is_low)
        result = _recurrence(z, degree, first(z), step)
        if wave is not None:
            result = (inside & (degree > 6.0)).where(wave(call("acos", z), degree), result)
        if edge is not None:
            on_edge = absolute(z).eq(1.0) & (degree >= 0)
            is_even = call("fmod", degree, full_like(degree, 2.0)).eq(0)
            result = on_edge.where(edge(z, degree, is_even), result)
        return result

    return partial(elementwise_float, rule)


def _sign(x: UOp, even: UOp) -> UOp:
    return ((x > 0) | even).where(full_like(x, 1.0), full_like(x, -1.0))


def _odd_degree(x: UOp, degree: UOp, even: UOp) -> UOp:
    """2n+1 on the left, with its sign; 1 on the right."""
    many = degree * 2.0 + 1.0
    return (x > 0).where(full_like(x, 1.0), even.where(many, -many))


_CHEBYSHEV: dict[str, tuple[Callable[[UOp], UOp], Edge, Callable[[UOp, UOp], UOp]]] = {
    "t": (lambda x: x, lambda x, _, even: _sign(x, even), lambda a, n: call("cos", n * a)),
    "u": (
        lambda x: x * 2.0,
        lambda x, n, even: _sign(x, even) * (n + 1.0),
        lambda a, n: call("sin", (n + 1.0) * a) / call("sin", a),
    ),
    "v": (
        lambda x: x * 2.0 - 1.0,
        _odd_degree,
        lambda a, n: call("cos", (n + 0.5) * a) / call("cos", a * 0.5),
    ),
    "w": (
        lambda x: x * 2.0 + 1.0,
        lambda x, n, even: (x > 0).where(n * 2.0 + 1.0, _sign(x, even)),
        lambda a, n: call("sin", (n + 0.5) * a) / call("sin", a * 0.5),
    ),
}

_FUNCTIONS: dict[str, Function] = {
    "special_hermite_polynomial_h": _polynomial(
        lambda x: x * 2.0, lambda x, q, p, k: x * 2.0 * q - p * (2.0 * k)
    ),
    "special_hermite_polynomial_he": _polynomial(lambda x: x, lambda x, q, p, k: x * q - p * k),
    "special_laguerre_polynomial_l": _polynomial(
        lambda x: 1.0 - x,
        lambda x, q, p, k: ((2.0 * k + 1.0 - x) * q - p * k) / (k + 1.0),
    ),
    "special_legendre_polynomial_p": _polynomial(
        lambda x: x,
        lambda x, q, p, k: (x * (2.0 * k + 1.0) * q - p * k) / (k + 1.0),
        lambda x, _, even: _sign(x, even),
    ),
    **{
        f"special_{shift}chebyshev_polynomial_{kind}": _polynomial(
            first, lambda x, q, p, _: x * 2.0 * q - p, edge, wave, bool(shift)
        )
        for shift in ("", "shifted_")
        for kind, (first, edge, wave) in _CHEBYSHEV.items()
    },
}
TABLE: dict[str, Function] = {
    f"{name}{overload}": rule
    for name, rule in _FUNCTIONS.items()
    for overload in ("", ".x_scalar", ".n_scalar")
}
