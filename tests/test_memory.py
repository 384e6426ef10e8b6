"""Memory: nothing grows, freed blocks are used again, and the cache can be given back."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from harness import needs_tiny, synchronize, weighs_memory

from torch_tiny import _C

pytestmark = needs_tiny

MIB = 2**20
BLOCK = 5 * MIB  # what holds 4 MiB, rounded up as allocators do


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@weighs_memory
def test_training_steps_do_not_grow() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model.tiny()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(8, 16).tiny(), torch.randint(0, 4, (8,)).tiny()

    def steps(count: int) -> None:
        for i in range(count):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if i % 50 == 0:
                loss.item()

    steps(500)
    allocated, sizes = torch.tiny.memory_allocated(), [resident()]
    for _ in range(3):
        steps(1000)
        synchronize()
        sizes.append(resident())
    assert torch.tiny.memory_allocated() <= allocated + 4096
    # What leaks grows each time; the process may well grow once for another reason.
    assert min(after - before for before, after in pairwise(sizes)) < MIB // 2, sizes


@weighs_memory
def test_a_loop_that_never_reads_does_not_grow() -> None:
    x = torch.ones(64, 64, device="tiny")

    def work(count: int) -> None:
        y = x
        for _ in range(count):
            y = torch.tanh(y * 0.5 + x)

    work(20_000)
    torch.tiny.reset_peak_memory_stats()
    before = resident()
    work(60_000)
    assert resident() - before < 16 * MIB
    assert torch.tiny.max_memory_allocated() < 512 * MIB


def test_a_loop_over_large_tensors_is_cut_by_bytes() -> None:
    """16 MB a step: what waits to be run must be limited by its size, not by calls alone."""
    x = torch.ones(4 * MIB, device="tiny")
    synchronize()
    torch.tiny.reset_peak_memory_stats()
    kept = [x * i for i in range(3)]
    for _ in range(100):
        kept = [k + 1 for k in kept]
    synchronize()
    assert torch.tiny.max_memory_allocated() < 2**30


@weighs_memory
def test_new_shapes_do_not_grow_without_bound() -> None:
    def work(sizes: range) -> None:
        for size in sizes:
            (torch.ones(size, device="tiny") * 2).sum().item()

    work(range(1, 2000))
    before = resident()
    work(range(2000, 5000))
    assert resident() - before < 24 * MIB


def test_temporaries_are_not_kept() -> None:
    synchronize()
    torch.tiny.empty_cache()
    x = torch.ones(MIB, device="tiny")
    synchronize()
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    y = ((x + 1) * 2 - 3).exp().log().abs().sqrt()
    synchronize()
    assert torch.tiny.memory_allocated() - before <= BLOCK
    assert torch.tiny.max_memory_allocated() - before <= 4 * BLOCK
    assert y.shape == x.shape


def test_a_freed_block_is_used_again() -> None:
    synchronize()
    torch.tiny.empty_cache()
    x = torch.empty(MIB, device="tiny").fill_(1)
    address, reserved = x.data_ptr(), torch.tiny.memory_reserved()
    for _ in range(3):
        del x
        x = torch.empty(MIB, device="tiny").fill_(2)
        assert x.data_ptr() == address
    assert torch.tiny.memory_reserved() == reserved


@weighs_memory
def test_empty_cache_gives_back() -> None:
    torch.tiny.empty_cache()
    before = torch.tiny.memory_reserved()
    x = torch.ones(32 * MIB, device="tiny") + 1
    synchronize()
    held = resident()
    del x
    synchronize()
    assert torch.tiny.memory_reserved() - before >= 128 * MIB
    torch.tiny.empty_cache()
    assert torch.tiny.memory_reserved() - before < 8 * MIB
    if torch.tiny.device_name() == "cpu":
        assert held - resident() >= 48 * MIB


def test_deleting_a_pending_result_frees_it() -> None:
    synchronize()
    before = torch.tiny.memory_allocated()
    for _ in range(50):
        (torch.ones(MIB, device="tiny") + 1).mul_(2)
    synchronize()
    assert torch.tiny.memory_allocated() <= before + 4096


def test_a_cycle_is_collected() -> None:
    synchronize()
    before = torch.tiny.memory_allocated()
    for _ in range(5):
        holder: dict[str, object] = {"x": torch.ones(MIB, device="tiny") + 1}
        holder["self"] = holder
    del holder
    gc.collect()
    synchronize()
    assert torch.tiny.memory_allocated() <= before + 4096


def test_asking_for_too_much_fails_clearly_and_leaves_the_device_usable() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)alloc|memory"):
        torch.ones(2**50, device="tiny").cpu()
    synchronize()
    assert torch.ones(3, device="tiny").sum().item() == 3


def test_allocated_counts_storages_once() -> None:
    synchronize()
    before = torch.tiny.memory_allocated()
    x = torch.ones(MIB, device="tiny") + 1
    views = [x[i:] for i in range(10)]
    synchronize()
    assert torch.tiny.memory_allocated() - before <= BLOCK
    assert views[3].sum().item() == 2 * (MIB - 3)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "3000", "a/memory.max": "max"}, 3000),
        ("0::/a/b\n", {"a/b/memory.max": "3000", "a/memory.max": "2000"}, 2000),
        ("0::/\n", {"memory.max": "1000"}, 1000),
        ("0::/not/seen/from/here\n", {"memory.max": "1000"}, 1000),
        ("7:cpu:/x\n4:blkio,memory:/a\n", {"memory/a/memory.limit_in_bytes": "500"}, 500),
        ("0::/a\n", {}, 2**64 - 1),
        ("", {"memory.max": "1000"}, 2**64 - 1),
    ],
)
def test_limits_of_containers_are_found(
    groups: str, files: dict[str, str], limit: int, tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    found = _C.memory_limit_of_groups(str(tmp_path / "groups"), str(tmp_path / "root"))
    assert found == limit


def test_a_plan_in_use_outlives_many_others(device: str) -> None:
    x = torch.ones(5000, device=device)

    def one(place: int) -> None:
        (x[place : place + 4] + 1).sum().item()

    one(0)
    one(0)
    for place in range(1, 2500):
        one(place)
        if place % 100 == 0:
            misses = torch.tiny.metrics()["plan_misses"]
            one(0)
            assert torch.tiny.metrics()["plan_misses"] == misses, place


def test_code_that_is_made_anew_is_not_kept(device: str) -> None:
    x = torch.ones(3, device=device)
    alive = []
    for _ in range(300):
        code = compile("y = (x + 1).sum().item()", "<made>", "exec")
        exec(code, {"x": x})
        alive.append(weakref.ref(code))
        del code
    assert sum(ref() is not None for ref in alive) < 5
    assert any("<made>:1" in cause["where"] for cause in torch.tiny.metrics()["causes"])
