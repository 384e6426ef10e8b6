"""Fused optimizer steps."""

import math
from collections.abc import Sequence
from functools import partial

from torch_tiny.lower.arithmetic import absolute, maximum
from torch_tiny.lower.promote import Operand, as_uop, cast, known
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import full, full_like, to_math
from torch_tiny.uops import UOp, call, dtypes
from torch_tiny.views import int_shape

Tensors = Sequence[UOp]


def _adam(
    params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, maxima: Tensors,
    steps: Tensors, lr: Operand, beta1: Operand, beta2: Operand, decay: Operand, eps: Operand,
    amsgrad: bool, maximize: bool, scale: UOp | None, found_inf: UOp | None, *, decoupled: bool,
) -> tuple[UOp, ...]:  # fmt: skip
    """Adam (weight decay as a gradient) or AdamW (decoupled). Results: each list in order."""
    new: list[list[UOp]] = [[], [], [], [], []]
    for i, param in enumerate(params):
        p, (unscaled, g) = to_math(param), _gradient(grads[i], scale, maximize)
        m, v = to_math(averages[i]), to_math(squares[i])
        # Bias corrections are computed in double, as the kernel does, then used in float.
        count = steps[i].cast(dtypes.float64).reshape(())
        b1, b2, rate = (as_uop(x, dtypes.float64).reshape(()) for x in (beta1, beta2, lr))
        wd = as_uop(decay, p.dtype)
        if not _is_zero(decay):
            if decoupled:
                p = p - cast(rate, p.dtype) * wd * p
            else:
                g = g + p * wd
        w1, w2 = cast(1.0 - b1, p.dtype), cast(1.0 - b2, p.dtype)
        m = m + w1 * (g - m)
        v = v * cast(b2, p.dtype) + w2 * g * g
        step_size = cast(rate / (1.0 - call("pow", b1, count)), p.dtype)
        root = cast(call("sqrt", 1.0 - call("pow", b2, count)), p.dtype)
        top = maximum(to_math(maxima[i]), v) if amsgrad else v
        p = p - step_size * m / (call("sqrt", top) / root + as_uop(eps, p.dtype))
        values = [p, unscaled, m, v, *([top] if amsgrad else [])]
        old = [param, grads[i], averages[i], squares[i], *([maxima[i]] if amsgrad else [])]
        for results, value, before in zip(new, values, old, strict=False):
            results.append(_unless(found_inf, cast(value, before.dtype), before))
    if not amsgrad:
        new[4] = list(maxima)
    return tuple(value for results in new for value in results)


def _sgd(
    params: Tensors, grads: Tensors, buffers: Tensors, decay: Operand, momentum: Operand,
    lr: Operand, dampening: Operand, nesterov: bool, maximize: bool, first: bool,
    scale: UOp | None, found_inf: UOp | None,
) -> tuple[UOp, ...]:  # fmt: skip
    new: list[list[UOp]] = [[], [], []]
    for i, param in enumerate(params):
        p, (unscaled, g) = to_math(param), _gradient(grads[i], scale, maximize)
        g = g if _is_zero(decay) else g + p * as_uop(decay, p.dtype)
        rate = as_uop(lr, p.dtype).reshape(())
        if buffers:
            mu, damp = as_uop(momentum, p.dtype), as_uop(dampening, p.dtype)
            buffer = g if known(first, "is_first_step") else (
                to_math(buffers[i]) * mu + g * (1.0 - damp)
            )  # fmt: skip
            g = g + buffer * mu if nesterov else buffer
            new[2].append(_unless(found_inf, cast(buffer, buffers[i].dtype), buffers[i]))
        new[0].append(_unless(found_inf, cast(p - rate * g, param.dtype), param))
        new[1].append(_unless(found_inf, unscaled, grads[i]))
    return tuple(value for results in new for value in results)


def _gradient(grad: UOp, scale: UOp | None, maximize: bool) -> tuple[UOp, UOp]:
    """What is left of it as a tensor, and what to go along."""
    g = to_math(grad)
    g = g if scale is None else g / scale.cast(g.dtype).reshape(())
    return cast(g, grad.dtype), -g if maximize else g


def _unscale(grads: Tensors, found_inf: UOp, inverse_scale: UOp) -> tuple[UOp, ...]:
    """The gradients divided by the scale; found_inf becomes 1 where one is not finite."""
    new, found = [], found_inf.reshape(())
    for grad in grads:
        g = to_math(grad)
        if 0 not in grad.shape:
            bad = (absolute(g) < math.inf).logical_not().reshape((-1,)).max((0,))
            found = bad.where(full((), 1, found.dtype), found)
        new.append(cast(g * inverse_scale.reshape(()).cast(g.dtype), grad.dtype))
    return (*new, found.reshape(int_shape(found_inf)))


def _update_scale(
    scale: UOp, streak: UOp, found_inf: UOp, growth: Operand, backoff: Operand, interval: int
) -> tuple[UOp, UOp]:
    """Less after infinities, more after a streak of steps without, if that is still finite."""
    found = found_inf.reshape(int_shape(scale)).ne(0)
    longer = streak + 1
    is_long = longer.eq(interval)
    grown = scale * as_uop(growth, scale.dtype)
    raised = (is_long & (absolute(grown) < math.inf)).where(grown, scale)
    return (
        found.where(scale * as_uop(backoff, scale.dtype), raised),
        (found | is_long).where(full_like(streak, 0), longer),
    )


def _unless(found_inf: UOp | None, value: UOp, before: UOp) -> UOp:
    if found_inf is None:
        return value
    return found_inf.reshape(()).eq(1.0).where(before, value)


def _is_zero(number: Operand) -> bool:
    return isinstance(number, int | float) and number == 0


TABLE: Table = {
    **dict.fromkeys(("_fused_adam", "_fused_adam.tensor_lr"), partial(_adam, decoupled=False)),
    **dict.fromkeys(("_fused_adamw", "_fused_adamw.tensor_lr"), partial(_adam, decoupled=True)),
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "_amp_update_scale_": _update_scale,
    **dict.fromkeys(("_fused_sgd", "_fused_sgd.tensor_lr"), _sgd),
}
