"""The gradients of the margin losses over classes."""

from collections.abc import Callable

from torch_tiny.lower.index import gather, take
from torch_tiny.lower.promote import Number, as_uop, cast, known
from torch_tiny.lower.rule import Table
from torch_tiny.lower.shapes import arange, full, full_like, to_math, total
from torch_tiny.uops import UOp, dtypes
from torch_tiny.views import int_shape


def _scaled(slope: Callable[[UOp], UOp], grad: UOp, x: UOp, reduction: int) -> UOp:
    """slope: of (samples, classes), of one sample too."""
    rows = to_math(x).reshape((-1, int_shape(x)[-1] if x.ndim else 1))
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

    return _scaled(slope, grad, x, reduction)


def _multilabel_margin(grad: UOp, x: UOp, target: UOp, reduction: int, is_target: UOp) -> UOp:
    def slope(rows: UOp) -> UOp:
        n, classes = int_shape(rows)
        labels = target.reshape((n, classes))
        # The labels of a sample end at the first negative one.
        ended = (labels < 0).cast(dtypes.int32)
        before = arange(classes) <= arange(classes).unsqueeze(1)
        counts = total(before.where(ended.unsqueeze(1), 0), (2,)).eq(0)
        safe = counts.where(labels, full_like(labels, 0))
        chosen = gather(rows, 1, safe)
        others = is_target.reshape((n, 1, classes)).eq(0)
        z = 1.0 - chosen.unsqueeze(2) + rows.unsqueeze(1)
        hit = ((z > 0) & others & counts.unsqueeze(2)).cast(rows.dtype)
        pushed = total(hit, (1,))
        pulls = total(hit, (2,))
        at = safe.unsqueeze(2).eq(arange(classes).cast(safe.dtype)) & counts.unsqueeze(2)
        return pushed - total(at.where(pulls.unsqueeze(2), full((), 0, rows.dtype)), (1,))

    return _scaled(slope, grad, x, reduction)


TABLE: Table = {
    "multi_margin_loss_backward": _multi_margin,
    "multilabel_margin_loss_backward": _multilabel_margin,
}
