"""Softmax, norms and losses."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch_tiny.lower.arithmetic import (
    absolute,
    exp,
    less_equal,
    log,
    log_sigmoid,
    maximum,
    sigmoid,
)
from torch_tiny.lower.conditions import require
from torch_tiny.lower.index import gather, take
from torch_tiny.lower.promote import Number, as_uop, cast, elementwise, known, math_dtype
from torch_tiny.lower.reduce import amax, moments
from torch_tiny.lower.rule import Results, Rule, Table
from torch_tiny.lower.shapes import (
    Shape,
    arange,
    count,
    full,
    full_like,
    kept_shape,
    positions,
    to_dtype,
    to_math,
    total,
    wrap_dim,
)
from torch_tiny.uops import DType, UOp, call, dtypes
from torch_tiny.views import int_shape

# --- softmax ---


def softmax(x: UOp, dim: int, dtype: DType | None = None) -> UOp:
    wide, over = to_math(cast(x, dtype) if dtype else x), _dim(x, dim)
    powers = exp(wide - amax(wide, over, True)) if over else full_like(wide, 1.0)
    return cast(powers / total(powers, over, True), dtype or x.dtype)


def log_softmax(x: UOp, dim: int, dtype: DType | None = None) -> UOp:
    wide, over = to_math(cast(x, dtype) if dtype else x), _dim(x, dim)
    shifted = wide - amax(wide, over, True) if over else full_like(wide, 0.0)
    return cast(shifted - log(total(exp(shifted), over, True)), dtype or x.dtype)


def _softmax_backward(grad: UOp, y: UOp, dim: int, dtype: DType) -> UOp:
    g, out = to_math(grad), to_math(y)
    product = g * out
    result = product - out * total(product, _dim(y, dim), True)
    return cast(result, to_dtype(dtype, grad.dtype))


def _log_softmax_backward(grad: UOp, y: UOp, dim: int, dtype: DType) -> UOp:
    g = to_math(grad)
    result = g - exp(to_math(y)) * total(g, _dim(y, dim), True)
    return cast(result, to_dtype(dtype, grad.dtype))


def _safe_softmax(x: UOp, dim: int, dtype: DType | None) -> UOp:
    out = softmax(x, dim, to_dtype(dtype, x.dtype))
    empty = amax(x.eq(-math.inf).logical_not(), _dim(x, dim), True).logical_not()
    return empty.where(full_like(out, 0), out)


def _dim(x: UOp, dim: int) -> tuple[int, ...]:
    return (wrap_dim(dim, x.ndim),) if x.ndim else ()


# --- norms: statistics over some dimensions, then a scale and a shift per channel ---


def _moments(x: UOp, over: tuple[int, ...], eps: Number) -> tuple[UOp, UOp]:
    """Mean and 1/standard deviation, kept as dimensions of 1."""
    mean, squares = moments(x, over)
    variance = squares / float(count(x, over))
    return mean, call("sqrt", variance + as_uop(eps, x.dtype)).reciprocal()


def _affine(x: UOp, weight: UOp | None, bias: UOp | None, shape: Shape) -> UOp:
    x = x if weight is None else x * to_math(weight).reshape(shape)
    return x if bias is None else x + to_math(bias).reshape(shape)


def _norm_backward(mask: Sequence[bool], grad: UOp, x: UOp, mean: UOp, rstd: UOp,
                   weight: UOp | None, shape: Shape, over: tuple[int, ...],
                   others: tuple[int, ...], is_training: bool = True) -> Results:  # fmt: skip
    """In a shape, normalized over some dimensions, with a weight for each place of those that are
    not among `others`: the gradients of input, weight and bias."""
    g, wide = to_math(grad).reshape(shape), to_math(x).reshape(shape)
    mean, rstd = (to_math(v).reshape(kept_shape(shape, over, True)) for v in (mean, rstd))
    normal = (wide - mean) * rstd
    each = kept_shape(shape, others, True)
    scaled = g if weight is None else g * to_math(weight).reshape(each)
    kind = x.dtype if weight is None else weight.dtype

    def inward() -> UOp:
        slope = scaled
        if is_training:
            n, pull = float(count(g, over)), total(scaled * normal, over, True)
            slope = scaled - total(scaled, over, True) / n - normal * (pull / n)
        return cast((slope * rstd).reshape(int_shape(x)), x.dtype)

    return _masked(
        mask,
        inward,
        lambda: cast(total(g * normal, others), kind),
        lambda: cast(total(g, others), kind),
    )


def _split(x: UOp, inner: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions before the last few, and those."""
    return tuple(range(x.ndim - inner)), tuple(range(x.ndim - inner, x.ndim))


def _layer_norm(x: UOp, shape: Sequence[int], weight: UOp | None, bias: UOp | None,
                eps: Number) -> Results:  # fmt: skip
    wide = to_math(x)
    mean, rstd = _moments(wide, _split(x, len(shape))[1], eps)
    out = _affine((wide - mean) * rstd, weight, bias, tuple(shape))
    kind = weight.dtype if weight is not None else x.dtype
    return cast(out, x.dtype), cast(mean, kind), cast(rstd, kind)


def _layer_norm_backward(grad: UOp, x: UOp, shape: Sequence[int], mean: UOp, rstd: UOp,
                         weight: UOp | None, bias: UOp | None,
                         mask: Sequence[bool]) -> Results:  # fmt: skip
    outer, over = _split(x, len(shape))
    mask = (mask[0], mask[1] and weight is not None, mask[2] and bias is not None)
    return _norm_backward(mask, grad, x, mean, rstd, weight, int_shape(x), over, outer)


def _rms_norm(x: UOp, shape: Sequence[int], weight: UOp | None, eps: Number | None) -> Results:
    wide, (_, over) = to_math(x), _split(x, len(shape))
    small = _EPSILON[wide.dtype] if eps is None else eps
    mean = total(wide * wide, over, True) / float(count(x, over))
    rstd = call("sqrt", mean + as_uop(small, wide.dtype)).reciprocal()
    return cast(_affine(wide * rstd, weight, None, tuple(shape)), x.dtype), rstd


def _rms_norm_backward(grad: UOp, x: UOp, shape: Sequence[int], rstd: UOp, weight: UOp | None,
                       mask: Sequence[bool]) -> Results:  # fmt: skip
    g, wide, (outer, over) = to_math(grad), to_math(x), _split(x, len(shape))
    normal = wide * to_math(rstd)
    scaled = g if weight is None else g * to_math(weight)
    n = float(count(x, over))
    return _masked(
        mask,
        lambda: cast((scaled - normal * (total(scaled * normal, over, True) / n)) * rstd, x.dtype),
        lambda: cast(total(g * normal, outer), x.dtype),
    )


_EPSILON = {dtypes.float32: 1.1920928955078125e-07, dtypes.float64: 2.220446049250313e-16}


def _group_norm(x: UOp, weight: UOp | None, bias: UOp | None, n: int, channels: int, size: int,
                groups: int, eps: Number) -> Results:  # fmt: skip
    grouped = to_math(x).reshape((n, groups, channels // groups, size))
    mean, rstd = _moments(grouped, (2, 3), eps)
    normal = ((grouped - mean) * rstd).reshape((n, channels, size))
    out = _affine(normal, weight, bias, (channels, 1)).reshape(int_shape(x))
    kind = weight.dtype if weight is not None else x.dtype
    return (cast(out, x.dtype), *(cast(v.reshape((n, groups)), kind) for v in (mean, rstd)))


def _group_norm_backward(grad: UOp, x: UOp, mean: UOp, rstd: UOp, weight: UOp | None, n: int,
                         channels: int, size: int, groups: int,
                         mask: Sequence[bool]) -> Results:  # fmt: skip
    shape = (n, groups, channels // groups, size)
    inward, *others = _norm_backward(mask, grad, x, mean, rstd, weight, shape, (2, 3), (0, 3))
    return (inward, *(None if v is None else v.reshape((channels,)) for v in others))


def _batch_norm(x: UOp, weight: UOp | None, bias: UOp | None, running_mean: UOp | None,
                running_var: UOp | None, training: bool, momentum: Number,
                eps: Number) -> Results:  # fmt: skip
    """Result, saved mean, saved 1/std; then the new running statistics where there are any."""
    wide, over = to_math(x), tuple(d for d in range(x.ndim) if d != 1)
    shape = kept_shape(int_shape(x), over, True)
    kind = next((p.dtype for p in (weight, running_mean) if p is not None), x.dtype)
    if not training:
        assert running_mean is not None and running_var is not None
        mean = to_math(running_mean).reshape(shape)
        rstd = call("sqrt", to_math(running_var).reshape(shape) + as_uop(eps, wide.dtype))
        out = _affine((wide - mean) / rstd, weight, bias, shape)
        saved: Results = (full((0,), 0, kind),) * 2
        return (cast(out, x.dtype), *saved, running_mean, running_var)
    mean, rstd = _moments(wide, over, eps)
    # The CPU's kernel normalizes with the statistics as it saves them, rounded.
    saved_mean, saved_rstd = cast(mean, kind), cast(rstd, kind)
    out = _affine((wide - to_math(saved_mean)) * to_math(saved_rstd), weight, bias, shape)
    results: Results = (
        cast(out, x.dtype), saved_mean.reshape((-1,)), saved_rstd.reshape((-1,))
    )  # fmt: skip
    if running_mean is None or running_var is None:
        return results
    n = count(x, over)
    centered = wide - mean
    variance = total(centered * centered, over) / full((), float(n - 1), wide.dtype)
    return (
        *results,
        _moved(running_mean, mean.reshape((-1,)), momentum),
        _moved(running_var, variance.reshape((-1,)), momentum),
    )


def _batch_norm_with_update(x: UOp, weight: UOp | None, bias: UOp | None, running_mean: UOp,
                            running_var: UOp, momentum: Number,
                            eps: Number) -> Results:  # fmt: skip
    out, mean, rstd, *running = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, rstd, full((0,), 0, dtypes.uint8), *running


def _moved(running: UOp, now: UOp, momentum: Number) -> UOp:
    rate = as_uop(momentum, math_dtype(running.dtype))
    return cast(now.cast(rate.dtype) * rate + to_math(running) * (1.0 - rate), running.dtype)


def _batch_norm_backward(grad: UOp, x: UOp, weight: UOp | None, running_mean: UOp | None,
                         running_var: UOp | None, mean: UOp | None, rstd: UOp | None,
                         training: bool, eps: Number, mask: Sequence[bool]) -> Results:  # fmt: skip
    over = tuple(d for d in range(x.ndim) if d != 1)
    if not training:
        assert running_mean is not None and running_var is not None
        mean, variance = running_mean, to_math(running_var)
        rstd = call("sqrt", variance + as_uop(eps, math_dtype(x.dtype))).reciprocal()
    assert mean is not None and rstd is not None
    return _norm_backward(mask, grad, x, mean, rstd, weight, int_shape(x), over, over, training)


def _masked(mask: Sequence[bool], *values: Callable[[], UOp]) -> Results:
    return tuple(value() if wanted else None for wanted, value in zip(mask, values, strict=True))


# --- losses ---


def _reduced(loss: UOp, reduction: int, dtype: DType) -> UOp:
    if reduction == 0:
        return cast(loss, dtype)
    everything = tuple(range(loss.ndim))
    summed = total(loss, everything)
    return cast(summed / float(count(loss, everything)) if reduction == 1 else summed, dtype)


def _loss(rule: Callable[..., UOp], x: UOp, target: UOp, reduction: int, *numbers: Number) -> UOp:
    """A loss of (input, target, *numbers) and a reduction before the numbers."""
    return _reduced(elementwise(rule, to_math(x), to_math(target), *numbers), reduction, x.dtype)


def _loss_backward(rule: Callable[..., UOp], grad: UOp, x: UOp, target: UOp, reduction: int,
                   *numbers: Number) -> UOp:  # fmt: skip
    """`rule` is the derivative with respect to the input."""
    slope = elementwise(rule, to_math(x), to_math(target), *numbers)
    return _shared(slope * to_math(grad), reduction, x.dtype)


def _shared(slope: UOp, reduction: int, dtype: DType) -> UOp:
    """Of a mean each element has its part."""
    n = float(count(slope, tuple(range(slope.ndim))))
    return cast(slope / n if reduction == 1 else slope, dtype)


def _smooth_l1(x: UOp, y: UOp, beta: UOp) -> UOp:
    z = absolute(x - y)
    return (z < beta).where(z * z * 0.5 / beta, z - beta * 0.5)


def _smooth_l1_slope(x: UOp, y: UOp, beta: UOp) -> UOp:
    z = x - y
    return _clipped_slope(z, beta, z / beta, full_like(z, 1.0))


def _clipped_slope(z: UOp, bound: UOp, inside: UOp, outside: UOp) -> UOp:
    below = less_equal(z, -bound).where(-outside, inside)
    return less_equal(bound, z).where(outside, below)


def _huber(x: UOp, y: UOp, delta: UOp) -> UOp:
    z = absolute(x - y)
    return less_equal(z, delta).where(z * z * 0.5, delta * (z - delta * 0.5))


def _huber_slope(x: UOp, y: UOp, delta: UOp) -> UOp:
    z = x - y
    return _clipped_slope(z, delta, z, delta.expand(z.shape))


def _bce(x: UOp, target: UOp, weight: UOp | None, reduction: int) -> UOp:
    p, y = to_math(x), to_math(target)
    for one in (p, y):
        require(less_equal(full_like(one, 0.0), one) & less_equal(one, full_like(one, 1.0)))
    floor = full_like(p, -100.0)
    loss = (y - 1.0) * maximum(call("log1p", -p), floor) - y * maximum(log(p), floor)
    return _reduced(loss if weight is None else loss * to_math(weight), reduction, x.dtype)


def _bce_backward(grad: UOp, x: UOp, target: UOp, weight: UOp | None, reduction: int) -> UOp:
    p, y, g = to_math(x), to_math(target), to_math(grad)
    result = g * (p - y) / maximum((1.0 - p) * p, full_like(p, 1e-12))
    result = result if weight is None else result * to_math(weight)
    return _shared(result, reduction, x.dtype)


def _bce_logits(x: UOp, target: UOp, weight: UOp | None, positive: UOp | None,
                reduction: int) -> UOp:  # fmt: skip
    z, y = to_math(x), to_math(target)
    found = log_sigmoid(z)
    if positive is not None:
        found = found * ((to_math(positive) - 1.0) * y + 1.0)
    loss = (1.0 - y) * z - found
    return _reduced(loss if weight is None else loss * to_math(weight), reduction, x.dtype)


def _nll_forward(x: UOp, target: UOp, weight: UOp | None, reduction: int,
                 ignored: int) -> tuple[UOp, UOp]:  # fmt: skip
    """Classes are dimension 1, or 0 of a single sample."""
    wide, dim = to_math(x), min(1, x.ndim - 1)
    kept, safe, factor = _classes(weight, target, ignored, wide.dtype)
    picked = gather(wide, dim, safe.unsqueeze(dim)).squeeze(dim)
    loss = kept.where(-picked * factor, full((), 0, wide.dtype))
    everything = tuple(range(target.ndim))
    weights = total(factor, everything)
    if reduction == 0:
        return cast(loss, x.dtype), cast(weights, x.dtype) if x.ndim == 1 else full((), 0, x.dtype)
    summed = total(loss, everything)
    return cast(summed / weights if reduction == 1 else summed, x.dtype), cast(weights, x.dtype)


def _nll_backward(grad: UOp, x: UOp, target: UOp, weight: UOp | None, reduction: int, ignored: int,
                  weights: UOp) -> UOp:  # fmt: skip
    dim = min(1, x.ndim - 1)
    kept, safe, factor = _classes(weight, target, ignored, math_dtype(x.dtype))
    g = to_math(grad) * -factor
    g = g / to_math(weights) if reduction == 1 else g
    hit = safe.unsqueeze(dim).eq(positions(int_shape(x), dim).cast(target.dtype))
    placed = (hit & kept.unsqueeze(dim)).where(g.unsqueeze(dim), full((), 0, g.dtype))
    return cast(placed.expand(int_shape(x)), x.dtype)


def _classes(weight: UOp | None, target: UOp, ignored: int, dtype: DType) -> tuple[UOp, UOp, UOp]:
    """Which targets count, those with 0 for the others, and their weights."""
    kept = target.ne(ignored)
    safe = kept.where(target, full_like(target, 0))
    chosen = full_like(target, 1.0, dtype)
    if weight is not None:
        chosen = take(to_math(weight), 0, safe.reshape((-1,))).reshape(int_shape(target))
    return kept, safe, kept.where(chosen, full((), 0, dtype))


def _rows(x: UOp) -> UOp:
    """(samples, classes), of one sample too."""
    rows: UOp = to_math(x).reshape((-1, int_shape(x)[-1] if x.ndim else 1))
    return rows


def _of_rows(slope: Callable[[UOp], UOp], grad: UOp, x: UOp, reduction: int) -> UOp:
    rows = _rows(x)
    n, classes = int_shape(rows)
    g = to_math(grad).reshape((-1, 1)) * (1.0 / (classes * (n if reduction == 1 else 1)))
    return cast(slope(rows) * g, x.dtype).reshape(int_shape(x))


def _multi_margin(grad: UOp, x: UOp, target: UOp, p: Number, margin: Number, weight: UOp | None,
                  reduction: int) -> UOp:  # fmt: skip
    def slope(rows: UOp) -> UOp:
        n, classes = int_shape(rows)
        at = target.reshape((n, 1))
        own = at.eq(arange(classes).cast(at.dtype))
        z = as_uop(margin, rows.dtype) - gather(rows, 1, at) + rows
        steep = full_like(z, 1.0) if known(p, "p") == 1 else z * 2.0
        steep = ((z > 0) & own.logical_not()).where(steep, full((), 0, z.dtype))
        if weight is not None:
            steep = steep * to_math(take(weight, 0, target.reshape((-1,)))).unsqueeze(1)
        return own.where(-total(steep, (1,), True), steep)

    return _of_rows(slope, grad, x, reduction)


def _labels(rows: UOp, target: UOp) -> tuple[UOp, UOp, UOp, UOp]:
    """Of (samples, labels): which count, that is before a first negative one; they, and what is
    there; by how much each class is above the margin that it has to keep from each of them."""
    n, classes = int_shape(rows)
    labels = target.reshape((n, classes))
    ended = (labels < 0).cast(dtypes.int32)
    before = arange(classes) <= arange(classes).unsqueeze(1)
    counts = total(before.where(ended.unsqueeze(1), 0), (2,)).eq(0).unsqueeze(2)
    safe = counts.squeeze(2).where(labels, full_like(labels, 0))
    at = safe.unsqueeze(2).eq(arange(classes).cast(safe.dtype)) & counts
    above = 1.0 - gather(rows, 1, safe).unsqueeze(2) + rows.unsqueeze(1)
    return counts, at, at.max((1,)), above


def _multilabel_margin(x: UOp, target: UOp, reduction: int) -> tuple[UOp, UOp]:
    rows = _rows(x)
    classes = int_shape(rows)[1]
    require((target >= -1) & (target < classes))
    counts, _, is_target, above = _labels(rows, target)
    is_other = counts & is_target.logical_not().unsqueeze(1)
    terms = (is_other & (above > 0)).where(above, full_like(above, 0))
    loss = (total(terms, (1, 2)) / float(classes)).reshape(int_shape(x)[:-1])
    return _reduced(loss, reduction, x.dtype), is_target.cast(x.dtype).reshape(int_shape(target))


def _multilabel_margin_backward(
    grad: UOp, x: UOp, target: UOp, reduction: int, is_target: UOp
) -> UOp:
    def slope(rows: UOp) -> UOp:
        n, classes = int_shape(rows)
        counts, at, _, above = _labels(rows, target)
        others = is_target.reshape((n, 1, classes)).eq(0)
        hit = ((above > 0) & others & counts).cast(rows.dtype)
        pulls = total(hit, (2,))
        pulled = total(at.where(pulls.unsqueeze(2), full((), 0, rows.dtype)), (1,))
        return total(hit, (1,)) - pulled

    return _of_rows(slope, grad, x, reduction)


TABLE: Table = {
    "_softmax": lambda x, dim, wide: softmax(x, dim, dtypes.float32 if wide else None),
    "_log_softmax": lambda x, dim, wide: log_softmax(x, dim, dtypes.float32 if wide else None),
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    "_safe_softmax": _safe_softmax,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    # Its schema does not say that it writes; it does when training.
    "native_batch_norm": Rule(
        lambda *args: _batch_norm(*args)[: 5 if args[5] else 3],
        writes=lambda args: ("running_mean", "running_var") if args[5] else (),
    ),
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit.no_stats": lambda x, w, b, *rest: _batch_norm(
        x, w, b, None, None, *rest
    ),
    "_batch_norm_with_update": _batch_norm_with_update,
    "native_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": lambda *args: _batch_norm_backward(*args[:-1]),
    "mse_loss": partial(_loss, lambda x, y: (x - y) * (x - y)),
    "mse_loss_backward": partial(_loss_backward, lambda x, y: (x - y) * 2.0),
    "smooth_l1_loss": partial(_loss, _smooth_l1),
    "smooth_l1_loss_backward": partial(_loss_backward, _smooth_l1_slope),
    "huber_loss": partial(_loss, _huber),
    "huber_loss_backward": partial(_loss_backward, _huber_slope),
    "soft_margin_loss": partial(_loss, lambda x, y: call("log1p", exp(-x * y))),
    "soft_margin_loss_backward": partial(_loss_backward, lambda x, y: -y * sigmoid(-x * y)),
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_backward": _bce_backward,
    "binary_cross_entropy_with_logits": _bce_logits,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll_forward),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    "multi_margin_loss_backward": _multi_margin,
    "multilabel_margin_loss_forward": _multilabel_margin,
    "multilabel_margin_loss_backward": _multilabel_margin_backward,
    "native_dropout_backward": lambda grad, mask, scale: elementwise(
        lambda g, s: mask.where(g * s, full_like(g, 0)), grad, scale
    ),
}
