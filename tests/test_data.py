"""Data loaders: worker processes, pinned memory, samplers and generators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import agree, needs_tiny, numbers, python
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate
from util import assert_same


class Rows(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((3,), float(i)), i


class Stream(IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from range(5)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_moved_over(workers: int, device: str) -> None:
    loader = DataLoader(Rows(), batch_size=4, num_workers=workers)
    batches = [(x.to(device), y.to(device)) for x, y in loader]
    assert [len(x) for x, _ in batches] == [4, 4, 2]
    assert torch.cat([y for _, y in batches]).tolist() == list(range(10))
    assert torch.cat([x for x, _ in batches]).mean(1).tolist() == list(range(10))


def test_workers_started_after_the_device_was_used(device: str) -> None:
    """They are forked, and touch only CPU tensors."""
    weight = numbers(3, 2).to(device)
    (weight * 2).sum().item()
    loader = DataLoader(Rows(), batch_size=5, num_workers=1, persistent_workers=True)
    for _ in range(2):
        results = [x.to(device, non_blocking=True) @ weight for x, _ in loader]
        assert_same(results[0], torch.arange(5.0)[:, None].expand(5, 3) @ numbers(3, 2))


def test_iterable(device: str) -> None:
    assert torch.cat([x.to(device) for x in DataLoader(Stream(), 2)]).tolist() == [0, 1, 2, 3, 4]


def test_a_dataset_on_the_device(device: str) -> None:
    data = TensorDataset(torch.arange(6.0, device=device), torch.arange(6, device=device))
    for x, y in DataLoader(data, batch_size=3):
        assert x.device.type == device
        assert x.tolist() == y.tolist()


def test_shuffling_with_a_generator(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        gen = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.arange(20).to(where))
        return [x for (x,) in DataLoader(data, 6, shuffle=True, generator=gen)]

    agree(program, device)


def test_collate(device: str) -> None:
    got = default_collate([{"a": torch.ones(2, device=device), "b": i} for i in range(3)])
    assert got["a"].shape == (3, 2)
    assert got["a"].device.type == device
    assert got["b"].tolist() == [0, 1, 2]


@needs_tiny
def test_pinned_memory(device: str) -> None:
    loader = DataLoader(Rows(), batch_size=5, pin_memory=True)
    for x, y in loader:
        assert x.is_pinned()
        got = x.to(device, non_blocking=True)
        assert got[:, 0].tolist() == y.tolist()


@needs_tiny
def test_pin_memory_of_a_tensor(device: str) -> None:
    x = numbers(3)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    assert pinned.device.type == "cpu"
    assert_same(pinned, x)
    assert_same(pinned.to(device, non_blocking=True), x)


@needs_tiny
def test_forked_workers_that_use_the_device_say_that_they_cannot() -> None:
    out = python("""
        import torch
        from torch.utils.data import DataLoader
        class OnDevice(torch.utils.data.Dataset):
            def __len__(self): return 2
            def __getitem__(self, i): return torch.ones(2, device="tiny").cpu()
        torch.ones(2, device="tiny").cpu()
        try:
            list(DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print("fork" in str(error))
    """)
    assert out.strip() == "True"


@needs_tiny
@pytest.mark.parametrize("pinned", [False, True])
def test_a_spawned_worker_that_sends_memory_of_the_device(pinned: bool, tmp_path: Path) -> None:
    """The error was printed by a thread of the worker, and the program waited for ever."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import torch
class OnDevice(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return torch.ones(2, device="tiny")
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        OnDevice(), num_workers=1, multiprocessing_context="spawn", pin_memory={pinned}
    )
    try:
        list(loader)
    except RuntimeError as error:
        print(error)
""")
    out = python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    assert ("Pin memory thread exited" if pinned else "send tensor.cpu() instead") in out
