"""Memory of portable devices: what is made for a program, shared in it, and kept for the next."""

import random

import pytest
from harness import needs_cpu_memory, needs_tiny
from harness import on_portable as run

from torch_tiny.portable.lifetimes import share
from torch_tiny.portable.pool import Pool

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes


@pytest.fixture
def kind(portable: str) -> str:
    return portable


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_at_once_shares_nothing(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((4, 64, 100, 4096)) for _ in range(30)]
    steps = [chance.sample(range(30), chance.randint(0, 4)) for _ in range(60)]
    made, home = share(sizes, steps)
    used = {one for step in steps for one in step}
    assert set(home) == used
    lives = {one: [k for k, step in enumerate(steps) if one in step] for one in used}
    for one in used:
        assert made[home[one]] >= sizes[one]
        for other in used - {one}:
            if home[one] == home[other]:
                a, b = lives[one], lives[other]
                assert a[-1] < b[0] or b[-1] < a[0]


def test_a_chain_needs_two_buffers() -> None:
    made, _ = share([8] * 50, [[k, k + 1] for k in range(49)])
    assert made == [8, 8]


def test_a_pool_keeps_what_was_used_last() -> None:
    pool = Pool(100)
    assert pool.take(60) is None
    assert pool.give("a", 60) == []
    assert pool.give("b", 30) == []
    assert pool.give("c", 30) == [("a", 60)]
    assert pool.take(60) is None
    assert {pool.take(30), pool.take(30)} == {"b", "c"}
    assert pool.give("d", 200) == [("d", 200)]
    assert pool.give("e", 10) == []
    assert pool.clear() == [("e", 10)]
    assert pool.take(10) is None


def test_temporaries_of_a_program_share_memory(kind: str) -> None:
    """A sort of 2^15 elements has 120 rounds, each of which writes all of them."""
    code = """
from torch_tiny.portable.memory import Memory
allocate, made = Memory.allocate, []
def counted(self, nbytes):
    made.append(nbytes)
    return allocate(self, nbytes)
Memory.allocate = counted
x = torch.randn(1 << 15, generator=torch.Generator().manual_seed(0))
assert torch.equal(x.to("tiny").sort()[0].cpu(), x.sort()[0])
print(sum(made) < 20 * x.nbytes)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == ["True"]


def test_memory_that_was_kept_is_used_again_and_given_back(kind: str) -> None:
    code = """
x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
on_device = x.to("tiny")
for k in range(20):
    assert torch.equal((on_device * k).cpu(), x * k)
    if k % 5 == 0:
        torch.tiny.empty_cache()
    if k % 7 == 0:
        torch.accelerator.empty_cache()
assert torch.equal(on_device.cpu(), x)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []
