"""NumPy and DLPack on the same memory, and copies between devices."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from harness import agree_on_error, needs_cpu_memory, needs_tiny, numbers, python, synchronize
from util import assert_same

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@needs_cpu_memory
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_sees_what_the_device_writes(dtype: torch.dtype, device: str) -> None:
    x = torch.zeros(2, 3, dtype=dtype, device=device)
    a = x.numpy()
    x[1, 1:] = 1
    synchronize(device)
    assert a.tolist() == x.tolist()
    assert a.sum() == 2


@needs_cpu_memory
def test_the_device_sees_what_numpy_writes(device: str) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    a = x.numpy()
    doubled = x * 2
    a[0] = 7
    after = x + 1
    assert doubled.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert after.tolist() == [[8, 8, 8], [4, 5, 6]]
    x.add_(1)
    a *= 2
    x[:, 0].sub_(1)
    assert a.tolist() == x.tolist() == [[15, 16, 16], [7, 10, 12]]


@needs_cpu_memory
def test_numpy_of_views(device: str) -> None:
    x = torch.arange(24.0, device=device).view(4, 6)
    view = x.T[1::2]
    a = view.numpy()
    assert a.strides == tuple(4 * s for s in view.stride())
    a[0, 0] = -1
    assert x[0, 1].item() == -1
    x.fill_(3)
    synchronize(device)
    assert (a == 3).all()


@needs_cpu_memory
def test_numpy_keeps_the_memory_alive(device: str) -> None:
    a = (torch.arange(1000.0, device=device) + 1).numpy()
    gc.collect()
    for _ in range(20):
        torch.zeros(1000, device=device).sum().item()
    assert (a == np.arange(1000) + 1).all()


def test_from_numpy_to_the_device(device: str) -> None:
    a = np.arange(6.0).reshape(2, 3)[:, ::2]
    x = torch.from_numpy(a).to(device) * 1
    a[:] = 0
    assert x.tolist() == [[0, 2], [3, 5]]
    assert torch.as_tensor(np.ones(3), device=device).device.type == device
    assert torch.tensor(np.float32(2), device=device).item() == 2


def test_what_numpy_refuses(device: str) -> None:
    agree_on_error(lambda d: torch.ones(2, device=d, requires_grad=True).numpy(), device)
    agree_on_error(lambda d: torch.ones(2, device=d, dtype=torch.complex64).conj().numpy(), device)
    agree_on_error(lambda d: torch.ones(2, device=d, dtype=torch.bfloat16).numpy(), device)
    assert torch.ones(2, device=device, requires_grad=True).numpy(force=True).tolist() == [1, 1]


@needs_cpu_memory
def test_numpy_functions(device: str) -> None:
    x = torch.arange(4.0, device=device)
    assert np.asarray(x).tolist() == [0, 1, 2, 3]
    assert np.sin(x.numpy()).tolist() == pytest.approx(x.sin().tolist())
    assert (np.array([x[0].item(), x[1]]) == [0, 1]).all()
    assert np.ones(3)[torch.tensor(1, device=device)] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_dlpack_shares_memory(dtype: torch.dtype, device: str) -> None:
    x = torch.zeros(2, 3, dtype=dtype, device=device)
    y = torch.from_dlpack(x)
    assert y.device.type in ("cpu", "cuda", device)
    y[1] = 5
    assert x.tolist() == y.tolist()
    x[0].add_(1)
    synchronize(device)
    assert x.tolist() == y.tolist()
    assert y.stride() == x.stride()


@needs_cpu_memory
def test_dlpack_with_numpy(device: str) -> None:
    x = torch.arange(3.0, device=device)
    a = np.from_dlpack(x)
    x.mul_(2)
    synchronize(device)
    assert a.tolist() == [0, 2, 4]
    assert x.__dlpack_device__()[0] == 1


def test_dlpack_capsule(device: str) -> None:
    x = torch.arange(3.0, device=device)
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert y.tolist() == [0, 1, 2]
    with pytest.raises(BufferError):
        torch.from_dlpack(torch.ones(2, device=device, requires_grad=True))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_copies_to_and_fro(dtype: torch.dtype, device: str) -> None:
    x = (numbers(3, 4) * 3).to(dtype)
    there = x.to(device)
    assert there.device.type == device
    assert_same(there, x)
    assert_same(there.cpu(), x)
    assert_same(x.T[1:].to(device, copy=True), x.T[1:].clone())
    assert_same(there[:, ::2].to("cpu", copy=True), x[:, ::2].clone())


def test_copy_converts_and_broadcasts(device: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.float64, device=device)
    x.copy_(torch.arange(3))
    assert x.tolist() == [[0, 1, 2]] * 2
    y = torch.zeros(3, dtype=torch.int32)
    y.copy_(x[0] + 0.5)
    assert y.tolist() == [0, 1, 2]
    z = torch.zeros(3, 2, dtype=torch.complex64)
    z.T.copy_(x)
    assert z.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert x.to("cpu", torch.bfloat16).dtype == torch.bfloat16


def test_to_returns_the_same_tensor(device: str) -> None:
    x = torch.ones(3, device=device)
    assert x.to(device) is x
    assert x.to(x.device, torch.float32) is x
    assert x.to(device, copy=True) is not x
    assert x.to(torch.ones(1, device=device)) is x


def test_conjugates_are_copied(device: str) -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert_same(z.to(device).conj().cpu().resolve_conj(), z.conj().resolve_conj())
    assert_same(z.conj().to(device).resolve_conj(), z.conj().resolve_conj())
    assert_same(z.to(device).conj().imag.cpu().resolve_neg(), z.conj().imag.resolve_neg())


def test_non_blocking(device: str) -> None:
    x = numbers(1000)
    y = x.to(device, non_blocking=True)
    expected = x.clone()
    back = (y * 2).to("cpu", non_blocking=True)
    synchronize(device)
    assert_same(back, expected * 2)
    assert_same(y, expected)


def test_a_source_changed_after_the_copy(device: str) -> None:
    x = numbers(1000)
    y = torch.empty(1000, device=device).copy_(x)
    z = x.to(device, copy=True)
    expected = x.clone()
    x.zero_()
    assert_same(y, expected)
    assert_same(z, expected)


def test_a_target_on_the_cpu_is_written_at_once(device: str) -> None:
    y = torch.zeros(3)
    y.copy_(torch.ones(3, device=device) + 1)
    assert y.tolist() == [2, 2, 2]
    y[1:].copy_(torch.ones(2, device=device))
    assert y.tolist() == [2, 1, 1]


def test_scalars_and_lists(device: str) -> None:
    x = torch.tensor([[1.5, 2], [3, 4]], device=device)
    values: list[Any] = [
        float(x[0, 0]),
        int(x[1, 1]),
        x[0, 1].item(),
        x.tolist(),
        bool(x[0, 0]),
        complex(x[0, 0]),
        [v.item() for v in x[1]],
        x.sum().item(),
    ]
    assert values == [1.5, 4, 2.0, [[1.5, 2], [3, 4]], True, 1.5 + 0j, [3, 4], 10.5]
    assert list(range(4))[torch.tensor(2, device=device)] == 2
    assert f"{x[0, 0]:.2f}" == "1.50"


@needs_tiny
def test_two_devices() -> None:
    memory = "cpu,cpu" if torch.tiny.device_name() == "cpu" else "cuda,cuda"
    out = python(
        """
        import torch
        a = torch.arange(4.0, device="tiny:0")
        a.add_(1)
        b = a.to("tiny:1")
        b.mul_(2)
        a[0] = 9
        c = torch.zeros(4, device="tiny:0")
        c.copy_(b)
        b.zero_()
        print(a.tolist(), b.tolist(), c.tolist(), b.device, c.device)
        with torch.tiny.device(1):
            d = torch.ones(2, device="tiny")
        print(d.device, torch.tiny.current_device(), torch.tiny.device_count())
        try:
            print(a + d)
        except RuntimeError as error:
            print("same device" in str(error))
        e = torch.ones(2, device="tiny:1", requires_grad=True)
        (e.to("tiny:0").exp() * a[:2]).sum().cpu().backward()
        print(e.grad.device, e.grad.dtype)
        m = torch.nn.Linear(2, 2).to("tiny:1")
        print(next(m.parameters()).device)
        """,
        TORCH_TINY_DEVICES=memory,
    )
    assert out.splitlines() == [
        "[9.0, 2.0, 3.0, 4.0] [0.0, 0.0, 0.0, 0.0] [2.0, 4.0, 6.0, 8.0] tiny:1 tiny:0",
        "tiny:1 0 2",
        "True",
        "tiny:1 torch.float32",
        "tiny:1",
    ]


@needs_tiny
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_copies_between_cuda_and_tiny(device: str) -> None:
    x = numbers(3, 4)
    there = x.to(device).to("cuda")
    assert_same(there.to(device).cpu(), x)
    y = torch.zeros(3, 4, device=device)
    y.copy_(there * 2)
    assert_same(y, x * 2)
