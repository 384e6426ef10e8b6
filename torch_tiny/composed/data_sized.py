"""Operators whose results are as large as the data says, on portable devices: the device counts,
the host reads the count, and operators of a known size do the rest. Elsewhere they run at once. So
it is with `equal`, whose result the host reads at once."""

from typing import Any

import torch
from torch import Tensor

from torch_tiny.composed.row import ON_PORTABLE, Row

Indices = list[Tensor | None]


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask).item())


def _positions(mask: Tensor) -> Tensor:
    """Where a 1-d mask is true."""
    return torch.nonzero_static(mask, size=_count(mask)).select(1, 0)


def _nonzero(x: Tensor) -> Tensor:
    """As the CPU's: one column after the other, also where there is nothing."""
    count = _count(x)
    columns = torch.empty(x.dim(), count, dtype=torch.int64, device=x.device)
    columns.copy_(torch.nonzero_static(x, size=count).t())
    return columns.as_strided((count, x.dim()), (1, count))


def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    mask, x = torch.broadcast_tensors(mask, x)
    return x.reshape(-1).index_select(0, _positions(mask.reshape(-1)))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _need_numbers(indices: Indices) -> bool:
    return any(index is not None and (index.is_cpu or _is_mask(index)) for index in indices)


def _numbers_of(x: Tensor, indices: Indices) -> Indices:
    """The indices as numbers on the device. They may lie on the CPU, as those that Python makes of
    a list do; a mask becomes the places where it is set."""
    numbers: Indices = []
    for index in indices:
        if index is None or not _is_mask(index):
            numbers.append(index if index is None else _moved(index, x))
            continue
        dim = len(numbers)
        for d, size in enumerate(index.shape):
            if dim + d >= x.dim() or size != x.size(dim + d):
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {d} does not match the "
                    f"shape of the indexed tensor {list(x.shape)} at index {dim + d}"
                )
        places = index.nonzero() if index.is_cpu else _nonzero(index)
        numbers += [_moved(column, x) for column in places.unbind(1)]
    return numbers


def _moved(index: Tensor, x: Tensor) -> Tensor:
    return index.to(x.device) if index.is_cpu else index


def _index(x: Tensor, indices: Indices) -> Any:
    if not _need_numbers(indices):
        return NotImplemented
    return torch.ops.aten.index.Tensor(x, _numbers_of(x, indices))


def _index_put(
    x: Tensor, indices: Indices, values: Tensor, accumulate: bool, is_unsafe: bool
) -> Any:
    """One value for all places needs no numbers: their count does not matter."""
    is_one = values.numel() == 1 and not any(i is not None and i.is_cpu for i in indices)
    if is_one or not _need_numbers(indices):
        return NotImplemented
    numbers = _numbers_of(x, indices)
    return torch.ops.aten._index_put_impl_.default(x, numbers, values, accumulate, is_unsafe)


def _runs(flat: Tensor, with_lengths: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of equal elements of a 1-d tensor: one of each, the run of each element, the lengths."""
    n = flat.numel()
    none = torch.empty(0, dtype=torch.int64, device=flat.device)
    if n == 0:
        return flat.new_empty(0), none, none.clone()
    first = torch.ones(n, dtype=torch.bool, device=flat.device)
    first[1:].copy_(flat[1:].ne(flat[:-1]))
    starts = _positions(first)
    lengths = none
    if with_lengths:
        lengths = torch.cat([starts[1:], starts.new_full((1,), n)]) - starts
    return flat.index_select(0, starts), first.cumsum(0) - 1, lengths


def _unique(
    x: Tensor, _sorted: bool, with_inverse: bool, with_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    ordered, order = torch.sort(x.reshape(-1), stable=True)
    values, run, counts = _runs(ordered, with_counts)
    if not with_inverse:
        return values, order.new_empty(0), counts
    return values, torch.empty_like(order).scatter_(0, order, run).view(x.shape), counts


def _unique_without_counts(x: Tensor, _sorted: bool, with_inverse: bool) -> tuple[Tensor, Tensor]:
    """What derivatives of fills by index call."""
    return _unique(x, _sorted, with_inverse, with_counts=False)[:2]


def _unique_consecutive(x: Tensor, with_inverse: bool, with_counts: bool, dim: int | None) -> Any:
    if dim is not None:
        return NotImplemented
    values, run, counts = _runs(x.reshape(-1), with_counts)
    return values, run.view(x.shape) if with_inverse else run.new_empty(0), counts


def _bincount(x: Tensor, weights: Tensor | None, least: int) -> Tensor:
    if least < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.numel() and (x.dim() != 1 or x.min().item() < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = int(x.max().item()) + 1 if x.numel() else 0
    if weights is None:
        kind = torch.int64
    elif weights.dim() != 1 or weights.numel() != x.numel():
        raise RuntimeError("weights should be 1-d and have the same length as input")
    else:
        kind = weights.dtype if weights.dtype == torch.float32 else torch.float64
    counts = torch.zeros(max(size, least), dtype=kind, device=x.device)
    if x.numel() == 0:
        return counts
    shares = torch.ones_like(x, dtype=kind) if weights is None else weights.to(kind)
    return counts.index_add_(0, x.to(torch.int64), shares)


def _repeat_interleave(repeats: Tensor, size: int | None) -> Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if repeats.min().item() < 0:
        raise RuntimeError("repeats can not be negative")
    ends = repeats.cumsum(0)
    total = int(ends[-1].item())
    if size is not None and size != total:
        raise RuntimeError("allocated size does not match required size")
    at = torch.arange(total, dtype=ends.dtype, device=ends.device)
    return torch.searchsorted(ends, at, right=True).to(repeats.dtype)


def _equal(x: Tensor, other: Tensor) -> Any:
    """One byte leaves the device."""
    if x.device != other.device or x.dtype != other.dtype:
        return NotImplemented
    return x.shape == other.shape and (x.numel() == 0 or bool(torch.eq(x, other).all().item()))


TABLE = tuple(
    Row(f"aten::{name}", ON_PORTABLE, function)
    for name, function in (
        ("equal", _equal),
        ("nonzero", _nonzero),
        ("masked_select", _masked_select),
        ("index.Tensor", _index),
        ("_index_put_impl_", _index_put),
        ("_unique", _unique_without_counts),
        ("_unique2", _unique),
        ("unique_consecutive", _unique_consecutive),
        ("bincount", _bincount),
        ("repeat_interleave.Tensor", _repeat_interleave),
    )
)
