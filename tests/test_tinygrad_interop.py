"""Tensors of tinygrad as tiny tensors and back, over the same memory."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Callable

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, numbers, on_portable, synchronize
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


def test_tensors_over_the_same_memory_know_of_each_other(device: str) -> None:
    theirs = memory_of(numbers(2, 3))
    one, other = torch_tiny.from_tinygrad(theirs), torch_tiny.from_tinygrad(theirs.permute(1, 0))
    one.fill_(4)
    assert other.tolist() == [[4, 4]] * 3
    x = torch.ones(3, device=device)
    back = torch_tiny.from_tinygrad(torch_tiny.to_tinygrad(x))
    x.add_(1)
    assert back.tolist() == [2, 2, 2]


def test_shared_memory_stays_where_it_is(device: str) -> None:
    theirs = memory_of(numbers(4))
    x = torch.ones(4, device=device)
    torch_tiny.to_tinygrad(x)
    for shared in (x, torch_tiny.from_tinygrad(theirs)):
        with pytest.raises(RuntimeError, match="tinygrad"):
            shared.resize_(100)
        with pytest.raises(RuntimeError, match="not resizable"):
            torch.ones(100, device=device, out=shared)
        assert shared.shape == (4,)
        shared.add_(1)
    synchronize(device)
    assert torch.from_numpy(theirs.numpy()).equal(numbers(4) + 1)


@pytest.mark.parametrize("mode", ["aten", "uop"])
def test_a_write_counts_where_no_tensor_of_ours_is_left(mode: str) -> None:
    """Not even when it is compiled: what nobody can read is not computed."""
    code = """
        import tinygrad
        theirs = tinygrad.Tensor([1.0, 2.0], device="PYTHON").realize()
        for _ in range(4):
            torch_tiny.from_tinygrad(theirs).mul_(2).add_(1)
            torch.tiny.synchronize()
        print(theirs.tolist())
    """
    assert on_portable("cpu", code, TORCH_TINY_ENGINE=mode) == ["[31.0, 47.0]"]


# --- memory of tinygrad's own devices, in processes of their own ---

HEAD = """
import gc, tinygrad
DEVICE = {"cl": "CL", "webgpu": "WEBGPU"}[torch.tiny.device_name()]
numbers = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))

def here(values):
    return values.to("tiny") * 1  # computed on the device

def there(values):
    flat = tinygrad.Tensor(values.flatten().tolist(), device=DEVICE, dtype=str(values.dtype)[6:])
    return flat.realize().reshape(tuple(values.shape))

def handle(theirs):
    import ctypes
    return ctypes.cast(theirs.uop.base.buffer._buf, ctypes.c_void_p).value

def read(theirs):
    return torch.from_numpy(theirs.numpy()).reshape(theirs.shape)

def host_copies():
    return [t for t in torch.tiny.metrics()["traffic"] if t["direction"] in ("upload", "download")]
"""


def test_portable_views_go_to_tinygrad(portable: str) -> None:
    """What is written here is there after a synchronize, in the same buffer."""
    code = """
        views = {
            "whole": lambda x: x,
            "transposed": lambda x: x.transpose(0, 2),
            "sliced": lambda x: x[1:, ::2, 1:3],
            "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
            "expanded": lambda x: x[:, :1].expand(2, 3, 4),
            "scalar": lambda x: x[1, 2, 3],
            "empty": lambda x: x[:0],
            "overlapping": lambda x: x.view(-1).unfold(0, 5, 2),
        }
        for name, view in views.items():
            x, expected = here(numbers), numbers.clone()
            torch.tiny.synchronize()
            torch.tiny.reset_metrics()
            theirs = torch_tiny.to_tinygrad(view(x))
            whole = torch_tiny.to_tinygrad(x)
            before = handle(whole)
            assert theirs.device == DEVICE and theirs.shape == view(x).shape, name
            for t in (x, expected):
                t.mul_(2).add_(1)
                t[0, 1] = 7
            torch.tiny.synchronize()
            assert host_copies() == [], (name, host_copies())
            assert handle(torch_tiny.to_tinygrad(x)) == before
            assert read(theirs).equal(view(expected)), name
            x.transpose(0, 1)[1].zero_()
            expected.transpose(0, 1)[1].zero_()
            torch.tiny.synchronize()
            assert read(theirs).equal(view(expected)), name
            assert x.cpu().equal(expected), name
    """
    assert on_portable(portable, HEAD + textwrap.dedent(code)) == []


def test_portable_views_come_from_tinygrad(portable: str) -> None:
    code = """
        moves = {
            "none": lambda t: t,
            "permuted": lambda t: t.permute(2, 0, 1),
            "shrunk": lambda t: t.shrink(((0, 2), (1, 3), (1, 4))),
            "reshaped": lambda t: t.reshape(3, 8),
            "expanded": lambda t: t.reshape(2, 1, 12).expand(2, 5, 12),
        }
        for name, move in moves.items():
            theirs = there(numbers)
            before, expected = handle(theirs), read(move(theirs))
            torch.tiny.reset_metrics()
            ours = torch_tiny.from_tinygrad(move(theirs))
            again = torch_tiny.from_tinygrad(theirs)
            assert ours.device.type == "tiny" and ours._base is not None
            again.add_(1)
            torch.tiny.synchronize()
            assert host_copies() == [], name
            assert handle(theirs) == handle(torch_tiny.to_tinygrad(ours)) == before
            assert torch.equal(ours.cpu(), expected + 1), name
            assert read(move(theirs)).equal(expected + 1), name
            flat = again.as_strided((3, 2), (5, 3), 1)
            flat.copy_(torch.arange(6.0).reshape(3, 2).to("tiny"))
            plain = (numbers + 1).flatten()
            plain.as_strided((3, 2), (5, 3), 1).copy_(torch.arange(6.0).reshape(3, 2))
            torch.tiny.synchronize()
            assert read(theirs).flatten().equal(plain), name
    """
    assert on_portable(portable, HEAD + textwrap.dedent(code)) == []


def test_portable_memory_is_written_by_both_sides(portable: str) -> None:
    """Also after the host had a copy of it, and after the host wrote it."""
    code = """
        x, expected = here(numbers), numbers.clone()
        theirs, part = torch_tiny.to_tinygrad(x), torch_tiny.to_tinygrad(x[:, 1])
        for round in range(3):
            assert x.cpu().equal(expected)               # the host has a copy
            theirs.assign(theirs * 2).realize()
            torch.tiny.synchronize()
            expected *= 2
            assert x.cpu().equal(expected) and (x[1] + 1).cpu().equal(expected[1] + 1)
            x[:, 1] = torch.full((2, 4), float(round))  # the host writes
            expected[:, 1] = round
            torch.tiny.synchronize()
            assert read(theirs).equal(expected) and read(part).equal(expected[:, 1])
            x.copy_(expected + 1)
            expected += 1
            assert read(theirs).equal(expected)
            part.assign(part + 3).realize()
            expected[:, 1] += 3
            assert x.sum().item() == expected.to("tiny").sum().item()
            x.sub_(1)
            expected -= 1
        k = torch.tensor([6, 9]).to("tiny")
        theirs = torch_tiny.to_tinygrad(k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            k.gcd_(torch.tensor([4, 6]).to("tiny"))      # an operator that runs on the host
            torch.tiny.synchronize()
        assert theirs.tolist() == k.tolist() == [2, 3]
    """
    assert on_portable(portable, HEAD + textwrap.dedent(code)) == []


def test_portable_memory_lives_as_long_as_either_side(portable: str) -> None:
    code = """
        def churn():
            gc.collect()
            for n in (6, 24, 24, 24):
                assert (torch.zeros(n, device="tiny") + 9).sum().item() == 9 * n
                there(torch.zeros(n))
        x = here(numbers)
        theirs = torch_tiny.to_tinygrad(x)
        held = torch.tiny.memory_allocated()
        del x
        churn()
        assert read(theirs).equal(numbers)
        ours = torch_tiny.from_tinygrad(theirs)
        del theirs
        churn()
        assert ours.cpu().equal(numbers)
        theirs = there(numbers)
        ours = torch_tiny.from_tinygrad(theirs)
        back = torch_tiny.to_tinygrad(ours.detach())
        del theirs, ours
        churn()
        assert read(back).equal(numbers)
        del back
        # Once tinygrad has let go, writes do not have to mind it.
        x = here(numbers)
        theirs = torch_tiny.to_tinygrad(x)
        del theirs
        gc.collect()
        torch.tiny.reset_metrics()
        x.add_(1)
        torch.tiny.synchronize()
        assert torch.tiny.metrics()["traffic"] == []
        assert x.cpu().equal(numbers + 1)
        del x
        torch.tiny.synchronize()
        counters = tinygrad.helpers.GlobalCounters
        before = counters.mem_used
        for _ in range(20):
            x = torch.ones(1000, device="tiny") + 1
            torch_tiny.to_tinygrad(x).assign(torch_tiny.to_tinygrad(x) + 1).realize()
            assert x.sum().item() == 3000
            ours = torch_tiny.from_tinygrad(there(torch.ones(1000)))
            assert ours.mul_(2).sum().item() == 2000
            del x, ours
        torch.tiny.synchronize()
        print(counters.mem_used - before, torch.tiny.memory_allocated() < 4000)
    """
    assert on_portable(portable, HEAD + textwrap.dedent(code)) == ["0 True"]


def test_portable_types(portable: str) -> None:
    code = """
        types = "float32 float16 int64 int32 int16 uint8 int8 bool".split()
        for name in types:
            dtype = getattr(torch, name)
            values = torch.tensor([0, 1, 3, 120, 1, 0, 5], dtype=dtype)
            x = values.to("tiny")
            theirs = torch_tiny.to_tinygrad(x)
            assert theirs.dtype == getattr(tinygrad.dtypes, name) and read(theirs).equal(values)
            x[2:4] = x[4:6].clone()
            values[2:4] = values[4:6].clone()
            torch.tiny.synchronize()
            assert read(theirs).equal(values), name
            theirs = there(values)
            ours = torch_tiny.from_tinygrad(theirs)
            assert ours.dtype == dtype and ours.cpu().equal(values), name
            ours[1:].copy_(ours[:-1].clone())
            torch.tiny.synchronize()
            assert read(theirs)[1:].equal(values[:-1]), name
        x = torch.arange(4, dtype=torch.int32).to("tiny")
        bits = torch_tiny.to_tinygrad(x.view(torch.int16)[::2])
        x.add_(1)
        torch.tiny.synchronize()
        assert bits.tolist() == [1, 2, 3, 4]
    """
    assert on_portable(portable, HEAD + textwrap.dedent(code)) == []


def test_what_portable_memory_cannot_do_is_refused(portable: str) -> None:
    code = """
        def message(f):
            try:
                f()
            except (ValueError, RuntimeError) as error:
                return str(error)
        theirs = there(numbers)
        assert "contiguous" in message(lambda: torch_tiny.from_tinygrad(theirs.flip(0)))
        ours = torch_tiny.from_tinygrad(theirs)
        assert "tinygrad" in message(lambda: ours.resize_(100))
        assert "not resizable" in message(lambda: torch.ones(100, device="tiny", out=ours))
        x = here(numbers).requires_grad_()
        assert "detach" in message(lambda: torch_tiny.to_tinygrad(x))
        cpu = tinygrad.Tensor([1.0, 2.0], device="PYTHON").realize()
        print(message(lambda: torch_tiny.from_tinygrad(cpu)))
        assert (ours + 1).cpu().equal(numbers + 1)
    """
    (said,) = on_portable(portable, HEAD + textwrap.dedent(code))
    assert f"TORCH_TINY_DEVICES={portable},cpu" in said


def test_a_device_that_is_not_among_ours_is_named(portable: str) -> None:
    name = {"cl": "CL", "webgpu": "WEBGPU"}[portable]
    code = f"""
        import tinygrad
        from torch_tiny.portable.kind import find_kind
        find_kind({portable!r}).open(0)
        try:
            torch_tiny.from_tinygrad(tinygrad.Tensor([1.0], device={name!r}).realize())
        except ValueError as error:
            print(error)
    """
    (said,) = on_portable("cpu", code)
    assert f"TORCH_TINY_DEVICES=cpu,{portable}" in said
    assert f"device {name}" in said
