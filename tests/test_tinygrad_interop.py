"""Tensors of tinygrad as tiny tensors and back, over the same memory."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, numbers, synchronize
from torch import Tensor

tinygrad = pytest.importorskip("tinygrad", reason="tinygrad is not installed")

import torch_tiny  # noqa: E402

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    # Without clang tinygrad has no CPU device, and its PYTHON device stands in; said once.
    pytest.mark.filterwarnings("ignore:tinygrad's device CPU does not open"),
]

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "sliced": lambda x: x[1:, ::2, 1:3],
    "selected": lambda x: x[:, 1],
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "expanded": lambda x: x[:, :1].expand(2, 3, 4),
    "reshaped": lambda x: x.view(6, 4),
    "scalar": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:0],
    "overlapping": lambda x: x.view(-1).unfold(0, 5, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_goes_to_tinygrad(name: str, device: str) -> None:
    x = numbers(2, 3, 4).to(device)
    theirs = torch_tiny.to_tinygrad(VIEWS[name](x))
    expected = VIEWS[name](x.cpu())
    assert theirs.shape == tuple(expected.shape)
    assert torch.from_numpy(theirs.numpy()).reshape(expected.shape).equal(expected)


@pytest.mark.parametrize("name", VIEWS)
def test_tinygrad_sees_what_is_written_here(name: str, device: str) -> None:
    x = numbers(2, 3, 4).to(device)
    theirs = torch_tiny.to_tinygrad(VIEWS[name](x))
    x.mul_(2).add_(1)
    x[0, 1] = 7
    synchronize(device)
    expected = VIEWS[name](x.cpu())
    assert torch.from_numpy(theirs.numpy()).reshape(expected.shape).equal(expected)


def test_what_tinygrad_writes_is_seen_here(device: str) -> None:
    x = numbers(3, 4).to(device)
    view = x.T[1:]
    before = x.cpu()
    theirs = torch_tiny.to_tinygrad(x)
    theirs.assign(theirs * 2).realize()
    assert x.cpu().equal(before * 2)
    assert view.cpu().equal((before * 2).T[1:])
    assert (view + 1).cpu().equal((before * 2).T[1:] + 1)


def memory_of(values: Tensor) -> tinygrad.Tensor:
    """A tinygrad tensor with memory of its own that this process can see."""
    data = values.contiguous()
    theirs = tinygrad.Tensor(data.flatten().tolist(), device="PYTHON", dtype=DTYPES[data.dtype])
    return theirs.realize().reshape(tuple(data.shape))


DTYPES = {
    torch.float32: tinygrad.dtypes.float32,
    torch.float64: tinygrad.dtypes.float64,
    torch.float16: tinygrad.dtypes.float16,
    torch.int64: tinygrad.dtypes.int64,
    torch.int32: tinygrad.dtypes.int32,
    torch.uint8: tinygrad.dtypes.uint8,
    torch.bool: tinygrad.dtypes.bool,
}
MOVES: dict[str, Callable[[tinygrad.Tensor], tinygrad.Tensor]] = {
    "none": lambda t: t,
    "permuted": lambda t: t.permute(2, 0, 1),
    "shrunk": lambda t: t.shrink(((0, 2), (1, 3), (1, 4))),
    "reshaped": lambda t: t.reshape(3, 8),
    "expanded": lambda t: t.reshape(2, 1, 12).expand(2, 5, 12),
}


@pytest.mark.parametrize("name", MOVES)
def test_movement_becomes_strides(name: str) -> None:
    values = numbers(2, 3, 4)
    theirs = memory_of(values)
    ours = torch_tiny.from_tinygrad(MOVES[name](theirs))
    assert ours.device.type == "tiny"
    expected = torch.from_numpy(MOVES[name](theirs).numpy())
    assert ours.cpu().equal(expected)
    # It is the same memory.
    torch_tiny.from_tinygrad(theirs).add_(1)
    synchronize()
    assert ours.cpu().equal(expected + 1)


def test_tinygrad_and_pytorch_write_the_same_memory() -> None:
    values = numbers(2, 3, 4)
    theirs = memory_of(values)
    ours = torch_tiny.from_tinygrad(theirs.permute(2, 1, 0))
    ours[0] = 5
    ours.transpose(0, 1).mul_(2)
    synchronize()
    values[..., 0] = 5
    assert torch.from_numpy(theirs.numpy()).equal(values * 2)
    theirs.assign(theirs - 1).realize()
    assert ours.cpu().equal((values * 2 - 1).permute(2, 1, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype: torch.dtype, device: str) -> None:
    values = torch.tensor([0, 1, 3, 120], dtype=dtype)
    theirs = torch_tiny.to_tinygrad(values.to(device))
    assert theirs.dtype == DTYPES[dtype]
    assert torch.from_numpy(theirs.numpy()).equal(values)
    back = torch_tiny.from_tinygrad(memory_of(values))
    assert back.dtype == dtype
    assert back.cpu().equal(values)


def test_there_and_back_is_the_same_memory(device: str) -> None:
    x = numbers(4, 5).to(device)
    back = torch_tiny.from_tinygrad(torch_tiny.to_tinygrad(x.T))
    assert back.stride() == x.T.stride()
    assert back.data_ptr() == x.data_ptr()
    back.fill_(3)
    synchronize(device)
    assert x.cpu().eq(3).all()


def test_memory_lives_as_long_as_either_side(device: str) -> None:
    x = numbers(1000).to(device)
    expected = x.cpu()
    theirs = torch_tiny.to_tinygrad(x)
    del x
    gc.collect()
    assert torch.from_numpy(theirs.numpy()).equal(expected)
    ours = torch_tiny.from_tinygrad(theirs)
    del theirs
    gc.collect()
    torch.zeros(1000, device=device).add_(9).cpu()
    assert ours.cpu().equal(expected)


def test_what_is_pending_runs_first(device: str) -> None:
    x = torch.ones(4, device=device)
    pending = (x * 3).cumsum(0)
    assert torch_tiny.to_tinygrad(pending).tolist() == [3, 6, 9, 12]


def test_a_tensor_still_to_be_computed_is_computed() -> None:
    theirs = memory_of(numbers(6)) * 2 + 1
    expected = numbers(6) * 2 + 1
    torch.testing.assert_close(torch_tiny.from_tinygrad(theirs).cpu(), expected)


def test_what_cannot_be_shared_is_refused(device: str) -> None:
    theirs = memory_of(numbers(2, 3))
    with pytest.raises(ValueError, match="contiguous"):
        torch_tiny.from_tinygrad(theirs.flip(0))
    with pytest.raises(ValueError, match="contiguous"):
        torch_tiny.from_tinygrad(theirs.permute(1, 0).reshape(6))
    with pytest.raises(ValueError, match="tiny"):
        torch_tiny.to_tinygrad(torch.ones(2))
    with pytest.raises(ValueError, match="detach"):
        torch_tiny.to_tinygrad(torch.ones(2, device=device, requires_grad=True))
    with pytest.raises(ValueError, match="complex"):
        torch_tiny.to_tinygrad(torch.ones(2, device=device, dtype=torch.complex64))
