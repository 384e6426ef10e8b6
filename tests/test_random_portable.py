"""The portable stream: the same bits from every engine and number of threads, and good ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import needs_tiny, only_on_cpu_memory, python
from portable_draws import MANY, Draws, drawn, names
from torch import Tensor

from torch_tiny.hosts import why_no_portable

pytestmark = [needs_tiny, only_on_cpu_memory("compares with cpu memory; needs no GPU")]

PORTABLE = {"TORCH_TINY_RNG": "portable", "TORCH_TINY_CACHE": ""}


@pytest.fixture(scope="module")
def by_pytorch(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    return drawn(tmp_path_factory.mktemp("draws"), "aten", OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def by_threads(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    return drawn(tmp_path_factory.mktemp("draws"), "aten", OMP_NUM_THREADS="3")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    return drawn(tmp_path_factory.mktemp("draws"), "uop", OMP_NUM_THREADS="2")


# --- the same everywhere ---


def test_threads_do_not_matter(by_pytorch: Draws, by_threads: Draws) -> None:
    for name, expected in by_pytorch.items():
        assert by_threads[name].equal(expected), name


@pytest.mark.parametrize("name", names())
def test_compiled_code_draws_the_same_bits(name: str, by_pytorch: Draws, compiled: Draws) -> None:
    assert compiled[name].equal(by_pytorch[name])


KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=str(why)))
    for kind in ("cl", "webgpu")
    for why in [why_no_portable(kind)]
]
FEW = """
import sys
import torch, torch_tiny
from torch.nn import functional as F
torch.manual_seed(7)
drawn = [
    torch.rand(50, device="tiny"),
    torch.randn(5, 7, device="tiny"),
    torch.randn(5, dtype=torch.complex64, device="tiny"),
    torch.zeros(50, device="tiny").exponential_(1.5),
    torch.randint(-5, 90, (50,), device="tiny"),
    F.dropout(torch.ones(50, device="tiny"), 0.3),
    F.rrelu(torch.arange(-25.0, 25, device="tiny"), training=True),
]
torch.save([x.cpu() for x in drawn], sys.argv[1])
assert not torch.tiny.metrics().get("fallbacks"), torch.tiny.metrics()["fallbacks"]
"""


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_draw_the_same_bits(kind: str, tmp_path: Path) -> None:
    """On a device of tinygrad it is the default, and nothing falls back to the host."""
    found = []
    for devices, stream in (("cpu", "portable"), (kind, "default")):
        path = tmp_path / f"{devices}.pt"
        python(
            f"import sys; sys.argv = ['', {str(path)!r}]\n" + FEW,
            timeout=600,
            TORCH_TINY_DEVICES=devices,
            TORCH_TINY_RNG=stream,
            TORCH_TINY_CACHE="",
        )
        found.append(torch.load(path))
    for one, other in zip(*found, strict=True):
        assert one.equal(other)


# --- it is Philox ---

KNOWN = [  # Random123's kat_vectors: counter, key, result
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Salmon and others, "Parallel random numbers: as easy as 1, 2, 3"; ten rounds."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert tuple(philox(list(counter), list(key))) == result


def test_the_words_are_philoxs(by_pytorch: Draws) -> None:
    """The key is the seed, the counter the element and the number of the call."""
    seed = 2**63 + 12345
    words = [
        philox([i, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
        for i in range(by_pytorch["all_bits"].numel())
    ]
    expected = np.array([w[0] << 32 | w[1] for w in words], np.uint64).view(np.int64)
    assert by_pytorch["all_bits"].equal(torch.from_numpy(expected))


def test_the_known_answer_comes_out() -> None:
    out = python(
        """
        import torch, torch_tiny
        for key, call in ((0, 0), (0x299F31D0A4093822, 0x0370734413198A2E)):
            generator = torch.Generator("tiny").manual_seed(key)
            generator.set_offset(call)
            x = torch.zeros(1, dtype=torch.int64, device="tiny")
            print(x.random_(-2**63, None, generator=generator).item() % 2**64)
        """,
        TORCH_TINY_ENGINE="aten",
        **PORTABLE,
    ).split()
    first, second = (
        philox(list(counter), list(key))
        for counter, key in (
            ((0, 0, 0, 0), (0, 0)),
            ((0, 0, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
        )
    )
    assert [int(x) for x in out] == [first[0] << 32 | first[1], second[0] << 32 | second[1]]


# --- they are distributed as they should be ---

CONTINUOUS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda x: x,
    "normal": torch.special.ndtr,
    "exponential": lambda x: -torch.expm1(-x),
    "cauchy": lambda x: torch.atan(x) / torch.pi + 0.5,
    "log_normal": lambda x: torch.special.ndtr(torch.log(x)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_distribution(name: str, dtype: str, by_pytorch: Draws) -> None:
    """Kolmogorov and Smirnov's test: the largest distance of the distribution functions."""
    x = CONTINUOUS[name](by_pytorch[f"{name} {dtype}"].double()).sort().values
    steps = torch.arange(1, MANY + 1, dtype=torch.float64) / MANY
    distance = torch.maximum((steps - x).abs(), (x - steps + 1 / MANY).abs()).max().item()
    assert distance < 1.95 / MANY**0.5  # one seed in a thousand is beyond


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments(dtype: str, by_pytorch: Draws) -> None:
    x = by_pytorch[f"normal {dtype}"].double()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean().item() - expected) < 4 * (variance / MANY) ** 0.5
    assert 4.2 < x.abs().max().item() < 6.5  # of so many


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """In standard deviations."""
    freedom = counts.numel() - 1
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    return (statistic - freedom) / (2 * freedom) ** 0.5


def test_integers(by_pytorch: Draws) -> None:
    for name, values in (("integers", 100), ("bytes", 256)):
        counts = by_pytorch[name].long().bincount(minlength=values).double()
        assert counts.numel() == values
        assert abs(chi_square(counts, torch.full((values,), MANY / values))) < 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_geometric(dtype: str, by_pytorch: Draws) -> None:
    counts = by_pytorch[f"geometric {dtype}"].long().bincount(minlength=20)[:20].double()
    expected = MANY * 0.3 * 0.7 ** (torch.arange(20) - 1.0)
    assert counts[0] == 0
    assert abs(chi_square(counts[1:], expected[1:].double())) < 4


def test_bernoulli_and_dropout(by_pytorch: Draws) -> None:
    spread = (0.3 * 0.7 / MANY) ** 0.5
    assert abs(by_pytorch["bernoulli"].mean().item() - 0.3) < 4 * spread
    kept = by_pytorch["dropout"].ne(0)
    assert abs(kept.double().mean().item() - 0.8) < 4 * (0.2 * 0.8 / MANY) ** 0.5
    assert set(by_pytorch["dropout"].unique().tolist()) == {0.0, 1.25}


def test_random_slopes_are_uniform_numbers_below_zero() -> None:
    code = """
import torch, torch_tiny
x = torch.linspace(-2, 1, 999, device="tiny").requires_grad_()
torch.manual_seed(3)
y = torch.nn.functional.rrelu(x, 0.2, 0.7, training=True)
y.sum().backward()
torch.manual_seed(3)
slopes = torch.empty(999, device="tiny").uniform_(0.2, 0.7)
expected = torch.where(x <= 0, slopes, 1)
assert torch.equal(y, x * expected) and torch.equal(x.grad, expected)
torch.manual_seed(3)
z = torch.nn.functional.rrelu_(x.detach().clone(), 0.2, 0.7, training=True)
assert torch.equal(y, z)
"""
    python(code, TORCH_TINY_RNG="portable", TORCH_TINY_CACHE="")


def test_neighbours_and_calls_are_independent(by_pytorch: Draws) -> None:
    bound = 4 / MANY**0.5
    x, y = by_pytorch["uniform float64"] - 0.5, by_pytorch["normal float64"]
    for one, other in ((x[1:], x[:-1]), (x[2:], x[:-2]), (x, y), (y[1:], y[:-1])):
        assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1].item()) < bound


def test_permutations_and_categories(by_pytorch: Draws) -> None:
    assert by_pytorch["randperm"].sort().values.equal(torch.arange(60))
    for row in by_pytorch["multinomial"]:
        assert row.unique().numel() == 5
    assert by_pytorch["multinomial_replacement"].shape == (3, 12)


def test_ranges(by_pytorch: Draws) -> None:
    for name in names():
        x = by_pytorch[name].double()
        if name.startswith("random_range"):
            assert x.min() >= (-3 if "float" in name else 3)
            assert x.max() < 90
        if name.startswith("rand "):
            assert x.min() >= 0
            assert x.max() < 1


# --- generators and states ---


def test_seeds_states_and_generators() -> None:
    """Everything that test_random.py asks of a generator, but whose numbers they are."""
    python(
        """
        import pytest, sys
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not oracles",
                              "tests/test_random.py"]))
        """,
        TORCH_TINY_ENGINE="aten",
        **PORTABLE,
    )


def test_states_move_between_devices_and_are_small() -> None:
    python(
        """
        import torch, torch_tiny
        torch.manual_seed(5)
        first = torch.rand(3, device="tiny:0")
        state = torch.tiny.get_rng_state("tiny:0")
        assert state.numel() == 16
        assert state.view(torch.int64).tolist() == [5, 1]
        expected = torch.randn(7, device="tiny:0").cpu()
        torch.tiny.set_rng_state(state, "tiny:1")
        assert torch.randn(7, device="tiny:1").cpu().equal(expected)
        # Of all devices the same seed gives the same numbers.
        torch.manual_seed(5)
        assert torch.rand(3, device="tiny:1").cpu().equal(first.cpu())
        """,
        TORCH_TINY_ENGINE="aten",
        TORCH_TINY_DEVICES="cpu,cpu",
        **PORTABLE,
    )


def test_a_new_offset_needs_no_new_plan() -> None:
    python(
        """
        import torch, torch_tiny
        def step():
            return (torch.rand(8, device="tiny") * 2).sum().item()
        seen = {step() for _ in range(3)}
        before = torch.tiny.metrics()["plan_misses"]
        seen |= {step() for _ in range(5)}
        assert torch.tiny.metrics()["plan_misses"] == before
        assert len(seen) == 8
        """,
        TORCH_TINY_ENGINE="aten",
        **PORTABLE,
    )


def test_recorded_draws_keep_their_seed() -> None:
    """In compiled code too: seeds are set while calls wait, without running them."""
    python(
        """
        import torch, torch_tiny
        def draw(seed):
            torch.manual_seed(seed)
            return torch.randn(5, device="tiny")
        draw(0).cpu()
        before = torch.tiny.metrics()["traces"]
        one, two, again = draw(1), draw(2), draw(1)
        assert torch.tiny.metrics()["traces"] == before
        assert one.cpu().equal(again.cpu()) and not one.cpu().equal(two.cpu())
        """,
        TORCH_TINY_ENGINE="uop",
        **PORTABLE,
    )


def test_errors_are_pytorchs() -> None:
    python(
        """
        import torch, torch_tiny
        wrong = [
            lambda x: x.normal_(0, -1.5), lambda x: x.uniform_(3, 2.5),
            lambda x: x.exponential_(-2.5), lambda x: x.random_(7, 3),
            lambda x: x.geometric_(1.5), lambda x: x.cauchy_(0, -2.5),
            lambda x: x.log_normal_(0, -2.5), lambda x: x.bernoulli_(1.5),
            lambda x: x.long().normal_(),
            lambda x: x.bernoulli_(x + 3), lambda x: torch.multinomial(x, 2),
            lambda x: torch.randperm(-1, device=x.device), lambda x: x.char().random_(0, 500),
            lambda x: torch.normal(x, x - 1), lambda x: torch.multinomial(x + 1, 9),
        ]
        for _ in range(2):  # as the first call of its kind, and as one that is known
            for one in wrong:
                told = []
                for device in ("cpu", "tiny"):
                    try:
                        one(torch.zeros(4, device=device)).cpu()
                    except Exception as error:
                        told.append((type(error), str(error).splitlines()[0]))
                assert len(told) == 2 and told[0] == told[1], told
        """,
        TORCH_TINY_ENGINE="aten",
        **PORTABLE,
    )


def test_an_unknown_stream_is_refused() -> None:
    out = python(
        """
        try:
            import torch_tiny
        except (ValueError, RuntimeError) as error:
            cause = error.__cause__ or error
            print(type(cause).__name__, cause)
        """,
        TORCH_TINY_RNG="mersenne",
    )
    assert "TORCH_TINY_RNG='mersenne' is not known" in out


def test_the_default_on_cpu_memory_is_the_cpus() -> None:
    if os.environ.get("TORCH_TINY_RNG"):
        pytest.skip("another stream was chosen")
    torch.manual_seed(3)
    ours = torch.rand(5, device="tiny").cpu()
    torch.manual_seed(3)
    assert ours.equal(torch.rand(5))
