"""Saving, loading, pickling and copying, to the device, from it, and without it."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import needs_tiny, numbers, python
from torch import Tensor
from util import ORACLE, assert_same


def saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def test_a_new_storage_is_filled(device: str) -> None:
    assert torch.UntypedStorage(4, device=device).fill_(3).tolist() == [3] * 4


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("source", ["cpu", "device"])
@pytest.mark.parametrize("target", [None, "cpu", "device", "callable", "dict"])
def test_tensors(source: str, target: str | None, weights_only: bool, device: str) -> None:
    start = device if source == "device" else "cpu"
    end = {None: start, "cpu": "cpu", "device": device, "callable": device, "dict": device}[target]
    to: Any = {
        None: None,
        "cpu": "cpu",
        "device": device,
        "callable": lambda s, _: s.to(device=device) if device != "cpu" else s,
        "dict": {start: device},
    }[target]
    if target == "dict" and device != "cpu":
        to = {"cpu": device, f"{device}:0": f"{device}:0"}
    x = numbers(3, 4)
    value = {"x": x.to(start) + 0, "n": 3, "list": [x.to(start).T]}
    got = torch.load(saved(value), map_location=to, weights_only=weights_only)
    assert got["x"].device.type == end
    assert got["n"] == 3
    assert_same(got["x"], x)
    assert_same(got["list"][0], x.T)


def test_pending_work_is_saved(device: str) -> None:
    x = torch.ones(3, device=device)
    x.add_(1)
    view = x[1:]
    view.mul_(3)
    assert torch.load(saved(x)).tolist() == [2, 6, 6]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.bool,
        torch.complex64,
        torch.uint8,
        torch.int64,
    ],
)
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    x = (numbers(4) * 3).to(dtype)
    got = torch.load(saved(x.to(device)))
    assert got.device.type == device
    assert_same(got, x)


def test_views_share_storage_after_loading(device: str) -> None:
    x = numbers(4, 4).to(device)
    got, row = torch.load(saved([x, x[1]]))
    row.zero_()
    assert got[1].tolist() == [0, 0, 0, 0]
    assert row.storage_offset() == 4


def test_a_file(tmp_path: Path, device: str) -> None:
    path = tmp_path / "x.pt"
    torch.save(numbers(100).to(device), path)
    assert_same(torch.load(path), numbers(100))
    assert_same(torch.load(path, map_location="cpu", mmap=True), numbers(100))


def test_legacy_format(device: str) -> None:
    x = numbers(5).to(device)
    got = torch.load(saved(x, _use_new_zipfile_serialization=False))
    assert got.device.type == device
    assert_same(got, numbers(5))


@needs_tiny
def test_a_file_is_readable_where_the_device_is_not_installed(tmp_path: Path, device: str) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": numbers(3).to(device)}, path)
    out = python(
        f"import torch; print(torch.load({str(path)!r}, map_location='cpu')['w'].tolist())",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.strip() == str(numbers(3).tolist())


def test_pickle(device: str) -> None:
    x = numbers(3, 2).to(device)
    got = pickle.loads(pickle.dumps([x, x.T]))
    assert got[0].device.type == device
    assert_same(got[0], numbers(3, 2))
    assert_same(got[1], numbers(3, 2).T)


def test_deepcopy_and_copy(device: str) -> None:
    x = numbers(3, 2).to(device).requires_grad_()
    (x * 2).sum().backward()
    deep, shallow = copy.deepcopy(x), copy.copy(x.detach())
    assert deep.device == x.device
    assert deep.requires_grad
    assert_same(deep.grad, torch.full((3, 2), 2.0))
    with torch.no_grad():
        x.zero_()
    assert_same(deep, numbers(3, 2))
    assert_same(shallow, torch.zeros(3, 2))


def test_deepcopy_of_views_keeps_sharing(device: str) -> None:
    x = numbers(4, 4).to(device)
    got, row = copy.deepcopy([x, x[1]])
    row.zero_()
    assert got[1].tolist() == [0, 0, 0, 0]
    assert x[1].tolist() == numbers(4, 4)[1].tolist()


def make(where: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(where)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, where: str) -> float:
    optimizer.zero_grad()
    loss = model(numbers(5, 3).to(where)).pow(3).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("source", ["oracle", "device"])
def test_training_goes_on_from_a_checkpoint(source: str, device: str) -> None:
    start, end = (device, ORACLE) if source == "device" else (ORACLE, device)
    model, optimizer = make(start)
    train(model, optimizer, start)
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    expected = [train(model, optimizer, start) for _ in range(3)]
    state = torch.load(file, map_location=end)
    model, optimizer = make(end)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert [train(model, optimizer, end) for _ in range(3)] == pytest.approx(expected)


def test_load_state_dict_assign(device: str) -> None:
    model, _ = make(device)
    state = {k: v.cpu() + 1 for k, v in model.state_dict().items()}
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict({k: v.to(device) for k, v in state.items()}, assign=True)
    assert_same(other.state_dict()["0.weight"], state["0.weight"])


def test_whole_modules(device: str) -> None:
    model, _ = make(device)
    got = torch.load(saved(model), weights_only=False)
    assert_same(got.state_dict(), {k: v.cpu() for k, v in model.state_dict().items()})
    assert copy.deepcopy(model)[0].weight.device.type == device


def test_parameters_and_buffers(device: str) -> None:
    got = torch.load(saved(torch.nn.Parameter(numbers(3).to(device))))
    assert isinstance(got, torch.nn.Parameter)
    assert got.device.type == device
    assert_same(got, numbers(3))


@needs_tiny
def test_share_memory_is_refused_clearly(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)shared.*\.cpu\(\)"):
        numbers(3).to(device).share_memory_()


def test_untyped_storage(device: str) -> None:
    x = numbers(3).to(device)
    storage = x.untyped_storage().clone()
    assert storage.device.type == device
    assert storage.nbytes() == 12
    x.zero_()
    assert_same(torch.empty(0, device=device).set_(storage), numbers(3))
    assert x.untyped_storage().cpu().tolist() == x.cpu().untyped_storage().tolist()


def test_a_storage_is_filled_in_the_middle_of_a_program(device: str) -> None:
    """As bytes, which its numbers are not."""
    for byte in (0, 1, 0, 63):
        x = numbers(3).to(device) * 2
        before = x + 1
        x.untyped_storage().fill_(byte)
        assert_same(before, numbers(3) * 2 + 1)
        assert_same(x * 2, torch.full((12,), byte, dtype=torch.uint8).view(torch.float32) * 2)


def test_repr(device: str) -> None:
    suffix = "" if device == "cpu" else f", device='{device}:0'"
    assert repr(torch.ones(2, device=device)) == f"tensor([1., 1.]{suffix})"
    assert "requires_grad=True" in repr(torch.ones(2, device=device, requires_grad=True))
    assert repr(torch.empty(0, device=device).long()).startswith("tensor([]")
    long: Tensor = torch.arange(5000, device=device)
    assert "..." in repr(long)


class Rebuilt:
    """Is pickled as a tensor of any sizes over three numbers."""

    def __init__(self, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.shape = (offset, size, stride)

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = torch.storage.TypedStorage(
            wrap_storage=torch.ones(3).untyped_storage(), dtype=torch.float32, _internal=True
        )
        return torch._utils._rebuild_tensor_v2, (numbers, *self.shape, False, OrderedDict())


@pytest.mark.parametrize("how", ["name", "callable"])
@pytest.mark.parametrize(
    "given",
    [
        (0, (1000,), (1,)),
        (5, (3,), (1,)),
        (0, (3,), (1000,)),
        (2, (3,), (-1,)),
        (-1, (1,), (1,)),
        (2**40, (1,), (1,)),
        (0, (2**20, 2**20, 2**20), (1, 1, 1)),
        (0, (2**31, 2**31), (2**31, 1)),
    ],
)
def test_a_file_whose_sizes_exceed_its_storage(given: Any, how: str, device: str) -> None:
    def program(where: str) -> Tensor:
        place: Any = where
        if how == "callable":
            place = lambda storage, _: storage if where == "cpu" else storage.to(device=where)  # noqa: E731
        loaded = torch.load(saved(Rebuilt(*given)), weights_only=True, map_location=place)
        assert isinstance(loaded, Tensor)
        return loaded

    with pytest.raises(RuntimeError) as expected:
        program("cpu")
    with pytest.raises(RuntimeError) as got:
        program(device)
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


@needs_tiny
def test_what_was_loaded_keeps_its_size(device: str) -> None:
    """As on the CPU: a tensor over a file's storage does not grow, nor by out=."""
    loaded = torch.load(saved(torch.ones(3)), map_location=device)
    with pytest.raises(RuntimeError, match="not resizable"):
        loaded.resize_(1000)
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.add(torch.ones(1000, device=device), 1, out=loaded[:0])
    assert loaded.add_(1).tolist() == [2, 2, 2]


@needs_tiny
def test_views_beyond_the_storage(device: str) -> None:
    def programs(where: str) -> list[Callable[[], Tensor]]:
        x = torch.ones(3, device=where)
        return [
            lambda: x.as_strided((4,), (1,)),
            lambda: x.as_strided((2,), (3,)),
            lambda: x.as_strided((1,), (1,), 3),
            lambda: x.as_strided((1,), (1,), -1),
            lambda: x.as_strided((3,), (-1,), 2),
            lambda: x.as_strided_((4,), (1,)),
            lambda: x.as_strided((2**32, 2**32), (2**32, 2**32)),
            lambda: x.as_strided_scatter(torch.zeros(4, device=where), (4,), (1,)),
            lambda: x.set_(x.untyped_storage(), -1, (3,), (1,)),
            lambda: x.set_(x.untyped_storage(), 0, (3,), (-1,)),
            lambda: x.set_(x.untyped_storage(), 0, (3,), (2**62,)),
            lambda: x.set_(x.untyped_storage(), 2**62, (3,), (1,)),
        ]

    for ours, theirs in zip(programs(device), programs("cpu"), strict=True):
        with pytest.raises(RuntimeError) as expected:
            theirs()
        with pytest.raises(RuntimeError) as got:
            ours()
        assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
