"""Large matrix products of float32 on cpu memory, which MKL or oneDNN computes."""

from collections.abc import Callable, Iterator

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, python
from torch import Tensor

from torch_tiny import _C

HAS_TWO_WAYS = (
    torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()
)
pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("chosen_by_time"),
    pytest.mark.skipif(not HAS_TWO_WAYS, reason="MKL is the only library for them here"),
]
TURNS = 40  # until it has come often, both ways were measured, and the better one runs

PRODUCTS: dict[str, Callable[[Callable[..., Tensor]], Tensor]] = {
    "mm": lambda new: new(128, 96) @ new(96, 160),
    "transposed": lambda new: new(96, 128).t() @ new(160, 96).t(),
    "slices": lambda new: new(256, 192)[::2, ::2] @ new(96, 400)[:, 80:240],
    "expanded": lambda new: new(1, 96).expand(128, 96) @ new(96, 160),
    "vector added": lambda new: torch.addmm(new(160), new(128, 96), new(96, 160)),
    "matrix added": lambda new: torch.addmm(new(160, 128).t(), new(128, 96), new(96, 160)),
    "number added": lambda new: torch.addmm(new(1, 1), new(128, 96), new(96, 160)),
    "factors": lambda new: torch.addmm(new(160), new(128, 96), new(96, 160), beta=0.5, alpha=2),
    "nothing": lambda new: torch.addmm(new(160), new(128, 96), new(96, 160), alpha=0),
    "bmm": lambda new: new(7, 64, 48) @ new(7, 48, 80),
    "bmm of transposed": lambda new: new(7, 48, 64).mT @ new(7, 80, 48).mT,
    "bmm of heads": lambda new: new(7, 64, 4, 48).transpose(1, 2).flatten(0, 1) @ new(28, 48, 80),
    "baddbmm": lambda new: torch.baddbmm(new(7, 1, 80), new(7, 64, 48), new(7, 48, 80)),
    "negated": lambda new: torch.view_as_complex(new(128, 104, 2)).conj().imag @ new(104, 160),
    "float64": lambda new: new(128, 96).double() @ new(96, 160).double(),
}


@pytest.fixture(scope="module")
def chosen_by_time() -> Iterator[None]:
    """As in the default mode, but for a worker, which would have nothing to do here."""
    _C.set_mode("auto")
    yield
    _C.set_mode("aten")
    _C.reset_jobs()


# A negated view is made plain before its product; every other shape is of one case alone.
OF_THE_OPERATOR = {"expanded", "factors", "nothing", "float64"}


@pytest.mark.parametrize("name", PRODUCTS)
def test_either_way_gives_what_the_cpu_gives(name: str) -> None:
    before = torch.tiny.metrics()["products"]
    for seed in range(TURNS):
        results = [PRODUCTS[name](_numbers(device, seed)) for device in ("cpu", "tiny")]
        assert results[0].stride() == results[1].stride()
        torch.testing.assert_close(results[1].cpu(), results[0])
    assert (torch.tiny.metrics()["products"] == before) == (name in OF_THE_OPERATOR)


def test_what_is_not_finite_stays_so() -> None:
    for seed in range(TURNS):
        left, right = (_numbers("cpu", seed + k)(128, 128) for k in (0, 100))
        left[3, 5], left[7, 9], right[11, 13] = torch.nan, torch.inf, -torch.inf
        result = left.to("tiny") @ right.to("tiny")
        torch.testing.assert_close(result.cpu(), left @ right, equal_nan=True)


def test_the_other_way_is_measured_and_counted() -> None:
    a = _numbers("tiny", 0)(224, 224)
    before = torch.tiny.metrics()["products"]
    for _ in range(TURNS):
        (a @ a).cpu()
    assert torch.tiny.metrics()["products"] - before >= 7


def test_few_runs_are_the_operators() -> None:
    """oneDNN keeps the code of each product: a program of many shapes would fill memory with it."""
    a = _numbers("tiny", 0)(250, 250)
    before = torch.tiny.metrics()["products"]
    for _ in range(12):
        (a @ a).cpu()
    assert torch.tiny.metrics()["products"] == before


def test_without_memory_for_a_copy_the_operator_goes_on() -> None:
    """oneDNN wants other strides than these, which MKL takes."""
    python(
        """
        import resource, torch
        from pathlib import Path
        torch.set_num_threads(1)
        left = torch.ones(4096, 2048, device="tiny")[:, :1024]
        right = torch.ones(1024, 8, device="tiny")
        for turn in range(60):
            product = left @ right
            if turn == 12:  # before oneDNN is tried; its copy would take 16 MiB
                product.cpu()
                torch.tiny.empty_cache()
                used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
                resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), used + (4 << 20)))
            assert (product.cpu() == 1024).all()
        """,
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_CACHE="",
    )


def test_small_ones_are_the_operators() -> None:
    a = _numbers("tiny", 0)(64, 64)
    assert _by_onednn(lambda: a @ a) == 0


def test_who_asks_for_deterministic_algorithms_gets_the_operators() -> None:
    a = _numbers("tiny", 0)(128, 160)
    torch.use_deterministic_algorithms(True)
    try:
        assert _by_onednn(lambda: a @ a.t()) == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_who_switches_onednn_off_gets_the_operators() -> None:
    a = _numbers("tiny", 0)(128, 192)
    with torch.backends.mkldnn.flags(enabled=False):
        assert _by_onednn(lambda: a @ a.t()) == 0


def _numbers(device: str, seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *sizes: torch.randn(sizes, generator=generator).to(device)


def _by_onednn(product: Callable[[], Tensor]) -> int:
    before = torch.tiny.metrics()["products"]
    for _ in range(TURNS):
        product().cpu()
    return int(torch.tiny.metrics()["products"] - before)
