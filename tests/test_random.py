"""Random numbers: the oracle's for the same seed, and a state that nothing disturbs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import agree, needs_tiny, numbers, synchronize
from torch import Tensor
from torch.nn import functional as F

DRAWS: dict[str, Callable[[str], Tensor]] = {
    "rand": lambda d: torch.rand(3, 5, device=d),
    "rand_float64": lambda d: torch.rand(20, device=d, dtype=torch.float64),
    "rand_bfloat16": lambda d: torch.rand(20, device=d, dtype=torch.bfloat16),
    "randn": lambda d: torch.randn(40, device=d),
    "randn_odd": lambda d: torch.randn(3, 3, device=d),
    "randn_complex": lambda d: torch.randn(4, device=d, dtype=torch.complex64),
    "randint": lambda d: torch.randint(-5, 100, (20,), device=d),
    "randint_int32": lambda d: torch.randint(0, 9, (20,), device=d, dtype=torch.int32),
    "randperm": lambda d: torch.randperm(30, device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(4, 2, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.zeros(4, 2, device=d).T),
    "randint_like": lambda d: torch.randint_like(torch.zeros(9, device=d), 7),
    "bernoulli": lambda d: torch.full((30,), 0.3, device=d).bernoulli(),
    "bernoulli_p": lambda d: torch.zeros(30, device=d).bernoulli_(0.7),
    "bernoulli_tensor": lambda d: torch.zeros(30, device=d).bernoulli_(
        torch.linspace(0, 1, 30, device=d)
    ),
    "multinomial": lambda d: torch.multinomial(torch.arange(1.0, 9, device=d), 5),
    "multinomial_replacement": lambda d: torch.multinomial(
        torch.arange(1.0, 9, device=d).expand(3, 8), 12, replacement=True
    ),
    "normal_": lambda d: torch.zeros(20, device=d).normal_(2, 3),
    "normal": lambda d: torch.normal(torch.arange(20.0, device=d), 0.5),
    "normal_tensors": lambda d: torch.normal(torch.arange(5.0, device=d), torch.ones(5, device=d)),
    "uniform_": lambda d: torch.zeros(20, device=d).uniform_(-1, 4),
    "uniform_through_a_view": lambda d: torch.zeros(5, 6, device=d).T[::2].uniform_(),
    "exponential_": lambda d: torch.zeros(20, device=d).exponential_(2),
    "geometric_": lambda d: torch.zeros(20, device=d).geometric_(0.4),
    "cauchy_": lambda d: torch.zeros(20, device=d).cauchy_(),
    "log_normal_": lambda d: torch.zeros(20, device=d).log_normal_(),
    "random_": lambda d: torch.zeros(20, device=d, dtype=torch.int64).random_(),
    "random_range": lambda d: torch.zeros(20, device=d).random_(3, 50),
    "poisson": lambda d: torch.poisson(torch.full((20,), 4.0, device=d)),
    "binomial": lambda d: torch.binomial(
        torch.full((9,), 10.0, device=d), torch.full((9,), 0.3, device=d)
    ),
    "gamma": lambda d: torch._standard_gamma(torch.full((9,), 2.0, device=d)),
    "dirichlet": lambda d: torch.distributions.Dirichlet(torch.ones(4, device=d)).sample(),
    "dropout": lambda d: F.dropout(torch.ones(40, device=d), 0.4),
    "dropout_in_place": lambda d: F.dropout(torch.ones(40, device=d), 0.4, inplace=True),
    "alpha_dropout": lambda d: F.alpha_dropout(torch.ones(40, device=d), 0.4, training=True),
    "feature_dropout": lambda d: F.dropout2d(torch.ones(4, 5, 2, 2, device=d), 0.4),
    "rrelu": lambda d: F.rrelu(-torch.ones(20, device=d), training=True),
    "gumbel": lambda d: F.gumbel_softmax(torch.zeros(3, 4, device=d)),
    "fractional_pool": lambda d: F.fractional_max_pool2d(
        numbers(1, 1, 30, 30).to(d), 2, output_size=13
    ),
    "attention_dropout": lambda d: F.scaled_dot_product_attention(
        *(numbers(1, 2, 4, 4, seed=i).to(d) for i in range(3)), dropout_p=0.3
    ),
    "trunc_normal": lambda d: torch.nn.init.trunc_normal_(torch.zeros(20, device=d)),
    "orthogonal": lambda d: torch.nn.init.orthogonal_(torch.zeros(3, 3, device=d)),
    "kaiming": lambda d: torch.nn.init.kaiming_uniform_(torch.zeros(3, 3, device=d)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_numbers_are_the_oracles(name: str, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        torch.manual_seed(11)
        return [DRAWS[name](where), DRAWS[name](where), torch.rand(2, device=where)]

    agree(program, device)


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_seed_gives_the_same_numbers(name: str, device: str) -> None:
    torch.manual_seed(5)
    first = DRAWS[name](device)
    again = DRAWS[name](device)
    torch.manual_seed(5)
    assert DRAWS[name](device).equal(first)
    assert DRAWS[name](device).equal(again)
    assert not first.equal(again)


def test_a_recorded_draw_does_not_see_a_later_seed(device: str) -> None:
    torch.manual_seed(1)
    first = torch.rand(5, device=device)
    torch.manual_seed(2)
    second = torch.rand(5, device=device)
    torch.manual_seed(1)
    third = torch.rand(5, device=device)
    assert first.equal(third)
    assert not first.equal(second)


def test_a_recorded_draw_does_not_see_a_later_state(device: str) -> None:
    module = torch.tiny if device != "cpu" else torch
    torch.manual_seed(1)
    state = module.get_rng_state()
    first = torch.rand(5, device=device)
    middle = module.get_rng_state()
    second = torch.rand(5, device=device)
    module.set_rng_state(state)
    again = torch.rand(5, device=device)
    module.set_rng_state(middle)
    assert torch.rand(5, device=device).equal(second)
    assert again.equal(first)


def test_reads_do_not_disturb_the_order(device: str) -> None:
    torch.manual_seed(4)
    expected = [torch.rand(3, device=device) for _ in range(4)]
    torch.manual_seed(4)
    for one in expected:
        got = torch.rand(3, device=device)
        synchronize(device)
        assert got.equal(one)


def test_a_draw_that_is_never_read_still_advances(device: str) -> None:
    torch.manual_seed(4)
    torch.rand(3, device=device)
    second = torch.rand(3, device=device)
    torch.manual_seed(4)
    kept = torch.rand(3, device=device)
    assert torch.rand(3, device=device).equal(second)
    assert not kept.equal(second)


def test_own_generator(device: str) -> None:
    gen = torch.Generator(device=device).manual_seed(7)
    assert gen.device.type == device
    assert gen.initial_seed() == 7
    first = torch.randn(4, device=device, generator=gen)
    state = gen.get_state()
    second = torch.randn(4, device=device, generator=gen)
    gen.set_state(state)
    assert torch.randn(4, device=device, generator=gen).equal(second)
    gen.manual_seed(7)
    assert torch.randn(4, device=device, generator=gen).equal(first)
    assert gen.clone_state().get_state().equal(gen.get_state())


def test_own_generator_leaves_the_default_alone(device: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3, device=device)
    torch.manual_seed(1)
    gen = torch.Generator(device=device).manual_seed(9)
    torch.zeros(5, device=device).normal_(generator=gen)
    torch.zeros(5, device=device).bernoulli_(0.5, generator=gen)
    torch.randperm(5, device=device, generator=gen)
    assert torch.rand(3, device=device).equal(expected)


def test_own_generator_gives_the_oracles_numbers(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        gen = torch.Generator(device=where).manual_seed(7)
        return [
            torch.rand(3, device=where, generator=gen),
            torch.randperm(5, device=where, generator=gen),
            torch.zeros(3, device=where).exponential_(generator=gen),
        ]

    agree(program, device)


def test_a_generator_dropped_before_the_run(device: str) -> None:
    def draw() -> Tensor:
        return torch.rand(3, device=device, generator=torch.Generator(device).manual_seed(3))

    pending = draw()
    assert draw().equal(pending)


@needs_tiny
def test_a_generator_of_another_device_is_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.rand(3, device=device, generator=torch.Generator("cpu")).cpu()


@needs_tiny
def test_fork_rng(device: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3, device=device)
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type=device):
        torch.manual_seed(99)
        inside = torch.rand(3, device=device)
    assert torch.rand(3, device=device).equal(expected)
    assert not inside.equal(expected)


@needs_tiny
def test_seeds(device: str) -> None:
    torch.tiny.manual_seed(13)
    assert torch.tiny.initial_seed() == 13
    first = torch.rand(3, device=device)
    torch.tiny.manual_seed_all(13)
    assert torch.rand(3, device=device).equal(first)
    torch.tiny.seed()
    assert torch.tiny.initial_seed() != 13
    assert not torch.rand(3, device=device).equal(first)


@needs_tiny
def test_states(device: str) -> None:
    state = torch.tiny.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first = torch.rand(3, device=device)
    torch.tiny.set_rng_state(state, device)
    assert torch.rand(3, device=device).equal(first)
    states = torch.tiny.get_rng_state_all()
    assert len(states) == torch.tiny.device_count()
    torch.tiny.set_rng_state_all(states)
    with pytest.raises((RuntimeError, TypeError)):
        torch.tiny.set_rng_state(torch.zeros(3, dtype=torch.uint8))


@needs_tiny
def test_the_cpus_own_numbers_are_left_alone(device: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(100, device=device).sum().item()
    assert torch.rand(3).equal(expected)


def test_dropout_backward_uses_the_same_mask(device: str) -> None:
    torch.manual_seed(1)
    x = torch.ones(100, device=device, requires_grad=True)
    y = F.dropout(x, 0.5)
    torch.manual_seed(2)
    y.sum().backward()
    assert x.grad.equal(y.detach())
