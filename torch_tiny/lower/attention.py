"""Scaled dot-product attention of the CPU's kind, forward and backward."""

import math

from torch_tiny.lower.arithmetic import exp, log
from torch_tiny.lower.matmul import matmul
from torch_tiny.lower.promote import NoLowering, Number, as_uop, cast
from torch_tiny.lower.reduce import amax
from torch_tiny.lower.rule import Results, Table
from torch_tiny.lower.shapes import arange, full, to_math, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape


def _scores(q: UOp, k: UOp, dropout: Number, causal: bool, mask: UOp | None,
            scale: Number | None) -> UOp:  # fmt: skip
    """(batch, heads, queries, keys), -inf where a query may not look."""
    if dropout != 0:
        raise NoLowering("attention with dropout")
    by = 1.0 / math.sqrt(int_shape(q)[-1]) if scale is None else scale
    scores = matmul(q, k.transpose(-1, -2)) * as_uop(by, to_math(q).dtype)
    never = full((), -math.inf, scores.dtype)
    if causal:
        queries, keys = int_shape(scores)[-2:]
        scores = (arange(keys) <= arange(queries).unsqueeze(1)).where(scores, never)
    if mask is not None:
        own = mask.reshape((*(1,) * (4 - mask.ndim), *int_shape(mask)))
        scores = own.where(scores, never) if mask.dtype == dtypes.bool else scores + to_math(own)
    return scores


def _shared(x: UOp, heads: int) -> UOp:
    """Keys and values whose heads several of the query's use."""
    batch, own, *rest = int_shape(x)
    if own == heads:
        return x
    spread = x.unsqueeze(2).expand((batch, own, heads // own, *rest))
    return spread.reshape((batch, heads, *rest))


def _gathered(x: UOp, heads: int) -> UOp:
    """The adjoint of `_shared`."""
    batch, own, *rest = int_shape(x)
    if own == heads:
        return x
    return total(x.reshape((batch, heads, own // heads, *rest)), (2,))


def _attention(q: UOp, k: UOp, v: UOp, dropout: Number, causal: bool, mask: UOp | None,
               scale: Number | None) -> Results:  # fmt: skip
    heads = int_shape(q)[1]
    scores = _scores(q, _shared(k, heads), dropout, causal, mask, scale)
    last = (3,)
    top = amax(scores, last, True)
    # A query that may look nowhere gets zeros.
    powers = exp(scores - top.eq(-math.inf).where(full((), 0, top.dtype), top))
    weights = total(powers, last, True)
    weights = weights.eq(0).where(full((), 1, weights.dtype), weights)
    out = matmul(powers, _shared(to_math(v), heads)) / weights
    return cast(out, q.dtype), (top + log(weights)).squeeze(3)


def _attention_backward(grad: UOp, q: UOp, k: UOp, v: UOp, out: UOp, logsumexp: UOp,
                        dropout: Number, causal: bool, mask: UOp | None,
                        scale: Number | None) -> Results:  # fmt: skip
    heads, own = int_shape(q)[1], int_shape(k)[1]
    keys, values = _shared(to_math(k), heads), _shared(to_math(v), heads)
    scores = _scores(q, keys, dropout, causal, mask, scale)
    top = to_math(logsumexp).unsqueeze(3)
    nowhere = top.eq(-math.inf)
    weights = nowhere.where(full((), 0, scores.dtype), exp(scores - top))
    g = to_math(grad)
    inner = total(g * to_math(out), (3,), True)
    by = 1.0 / math.sqrt(int_shape(q)[-1]) if scale is None else scale
    slopes = weights * (matmul(g, values.transpose(-1, -2)) - inner) * as_uop(by, g.dtype)
    return (
        cast(matmul(slopes, keys), q.dtype),
        cast(_gathered(matmul(slopes.transpose(-1, -2), to_math(q)), own), k.dtype),
        cast(_gathered(matmul(weights.transpose(-1, -2), g), own), v.dtype),
    )


TABLE: Table = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
