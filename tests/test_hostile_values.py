"""Values at the limits of their types, with everything compiled; see tests/hostile."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, on_portable, why_no_portable
from hostile.chains import LAST
from hostile.operators import LEFT_OUT
from hostile.values import DTYPES, pairs
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from util import DEVICE

from torch_tiny.lower import activation, elementwise, index, reduce

pytestmark = [needs_tiny, needs_cpu_memory, pytest.mark.usefixtures("everything_compiled")]

NAN, INF = float("nan"), float("inf")
FLOATS = [NAN, INF, -INF, 0.0, -0.0, 3e9, -3e9, 0.5, -0.5, 1.5, -1.5, 2.0**31, -(2.0**31)]


def agree(program: Callable[[str], torch.Tensor]) -> None:
    """Bit by bit, three times: the first call of a kind runs on PyTorch's kernels."""
    expected = program("cpu")
    for _ in range(3):
        ours = program(DEVICE)
        torch.tiny.synchronize()
        got = ours.cpu()
        assert got.dtype == expected.dtype and got.shape == expected.shape
        same = (got == expected) | (got.isnan() & expected.isnan())
        if got.is_floating_point():
            same &= (got.signbit() == expected.signbit()) | got.isnan()
        assert same.all(), f"{got[~same]}, not {expected[~same]}"


@pytest.fixture(params=["loaded", "computed"])
def source(request: pytest.FixtureRequest) -> Iterator[Callable[..., torch.Tensor]]:
    """The same numbers from memory, and computed in the region, so that no memory holds them."""

    def numbers(device: str, value: int, dtype: torch.dtype) -> torch.Tensor:
        if request.param == "loaded":
            return torch.full((64,), value, dtype=dtype).to(device)
        return torch.full((64,), value, dtype=dtype, device=device)

    yield numbers


def test_a_comparison_shifted_into_the_sign() -> None:
    x = torch.linspace(-1, 1, 64)
    agree(lambda d: (((x.to(d) > 0).int() << 31) < 0).sum())


def test_positions_squared_wrap_around() -> None:
    agree(lambda d: torch.arange(70000, dtype=torch.int32, device=d).square().double())


def test_positions_as_a_small_type_wrap_around() -> None:
    agree(lambda d: (torch.arange(300, device=d).to(torch.int8) < 0).sum())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_one_more_than_the_largest(source: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    agree(lambda d: (source(d, top, dtype) + 1) < 1)
    agree(lambda d: (source(d, top, dtype) * 3 - 7).float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_the_lowest_has_no_negative(
    source: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    low = torch.iinfo(dtype).min
    agree(lambda d: -source(d, low, dtype) < 0)
    agree(lambda d: source(d, low, dtype).abs() < 0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_powers_of_the_lowest(source: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    low = torch.iinfo(dtype).min
    exponents = torch.arange(64).to(dtype)
    agree(lambda d: source(d, low, dtype) ** 3)
    agree(lambda d: source(d, low, dtype) ** exponents.to(d))
    agree(lambda d: source(d, low + 1, dtype) ** exponents.to(d))


def test_negative_bytes_and_complements() -> None:
    agree(lambda d: -torch.arange(9, dtype=torch.uint8, device=d) > 100)
    agree(lambda d: ~torch.arange(9, dtype=torch.uint8, device=d) > 100)


def test_sums_of_small_types_wrap_around() -> None:
    agree(lambda d: torch.ones(300, dtype=torch.int8, device=d).sum(0, dtype=torch.int8) < 50)
    agree(lambda d: torch.full((9,), 1 << 30, device=d).int().cumsum(0, dtype=torch.int32) < 0)


def test_conversions_to_integers_and_back() -> None:
    x = torch.tensor(FLOATS * 3)
    agree(lambda d: x.to(d).int().float())
    agree(lambda d: x.double().to(d).long().double())
    agree(lambda d: torch.full((9,), NAN, device=d).int().float())
    y = torch.tensor([*FLOATS, 1e10, -1e10, 1e20, 70000.0, -40000.0, 300.0, 2.0**40 + 7])
    for dtype in (torch.uint8, torch.int8, torch.int16):
        for given in (y, y.double()):
            agree(lambda d: given.to(d).to(dtype).float())  # noqa: B023


def test_negative_zero_as_a_number() -> None:
    x = torch.tensor(FLOATS * 3)
    agree(lambda d: 1 / F.threshold(x.to(d), 0, 0.0))
    agree(lambda d: 1 / F.threshold(x.to(d), 0, -0.0))
    agree(lambda d: 1 / torch.full((9,), -0.0, device=d))
    agree(lambda d: 1 / (x.to(d) * -0.0))
    agree(lambda d: 1 / F.pad(x.to(d), (1, 1), value=-0.0))


def test_a_factor_that_was_minus_one_before_a_conversion() -> None:
    x = torch.tensor([5, -7, 123456789], dtype=torch.int32)
    for dtype in (torch.uint8, torch.bool, torch.int8):

        def converted(device: str) -> torch.Tensor:
            return torch.full((3,), -1, device=device).to(dtype).int()  # noqa: B023

        agree(lambda d: x.to(d) * converted(d))
        agree(lambda d: x.to(d) + x.to(d) * converted(d))
    agree(lambda d: x.float().to(d) * torch.full((3,), -1.5, device=d).int().float())


def test_a_factor_of_minus_one_that_was_padded() -> None:
    u = torch.randn(1, 9, 16)
    agree(lambda d: F.unfold(torch.full((1, 1, 4, 4), -1.0, device=d), 3, padding=1) * u.to(d))


def test_a_sum_of_negative_zeros() -> None:
    agree(lambda d: torch.full((8, 8), -0.0, device=d).sum(1))


def joined(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


ALL_FLOATS = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)


@ALL_FLOATS
def test_a_sum_of_one_negative_zero(dtype: torch.dtype) -> None:
    x, one = torch.full((7,), -0.0, dtype=dtype), torch.ones(1, dtype=dtype)

    def sums(device: str) -> torch.Tensor:
        z, o = x.to(device), one.to(device)
        column, image = z.view(7, 1), z.view(1, 1, 7)
        return joined(
            *(z[0].sum(), z[:1].sum(), z[:1].mean(), column.sum(1), z.view(1, 7, 1).sum((0, 2))),
            *(column.nansum(1), column.mean(1), column.cumsum(1), z.cumsum(0)),
            *(
                F.avg_pool1d(image, 1),
                F.adaptive_avg_pool1d(image, 7),
                F.conv1d(image, o[None, None]),
            ),
            *(torch.dot(z[:1], o), column @ o, torch.bmm(z.view(1, 7, 1), o.view(1, 1, 1))),
        )

    agree(sums)
    agree(lambda d: torch.view_as_real(torch.complex(*x[:1].float().to(d).expand(2, 1)).sum()))


@ALL_FLOATS
def test_a_matrix_product_of_one_negative_zero(dtype: torch.dtype) -> None:
    a, b = torch.full((7, 1), -0.0, dtype=dtype), torch.ones(1, 3, dtype=dtype)
    agree(lambda d: a.to(d) @ b.to(d))
    agree(lambda d: F.linear(a.to(d), b.t().to(d)))


@ALL_FLOATS
def test_negative_zeros_are_scattered(dtype: torch.dtype) -> None:
    zeros = torch.tensor([-0.0, 0.0, -0.0, -0.0, 1.0, -0.0], dtype=dtype)

    def scattered(device: str) -> torch.Tensor:
        z, ones = zeros.to(device), torch.ones(2, 3, dtype=dtype, device=device)
        i = torch.tensor([[0, 1], [2, 2]], device=device)
        part = z[:4].view(2, 2)
        return joined(
            ones.scatter(1, i, part), ones.scatter(0, i[:1], part), ones.scatter(1, i, -0.0)
        )

    agree(scattered)


@ALL_FLOATS
def test_what_nothing_is_added_to_keeps_its_sign(dtype: torch.dtype) -> None:
    zeros, mixed = torch.full((7,), -0.0, dtype=dtype), torch.tensor([-0.0, 0.0, 1.0], dtype=dtype)

    def added(device: str) -> torch.Tensor:
        z, m, i = zeros.to(device), mixed.to(device), torch.tensor([0, 2, 0], device=device)
        return joined(
            *(z.index_add(0, i, m), z.index_add(0, i, z[:3]), z.index_add(0, i[:1], m[2:])),
            *(z.index_put((i,), v, accumulate=True) for v in (m, z[:3])),
            *(z.clone().put_(i, v, accumulate=True) for v in (m, z[:3])),
            *(z.scatter_add(0, i, v) for v in (m, z[:3])),
            *(z.scatter_reduce(0, i, z[:3], "mean", include_self=own) for own in (True, False)),
        )

    agree(added)


@ALL_FLOATS
def test_bags_of_one_negative_zero(dtype: torch.dtype) -> None:
    rows = torch.full((7, 2), -0.0, dtype=dtype)
    for mode in ("sum", "mean", "max"):
        agree(lambda d: F.embedding_bag(torch.arange(4).view(4, 1).to(d), rows.to(d), mode=mode))  # noqa: B023


def test_negative_zeros_are_put_and_taken_in_halves() -> None:
    def put(device: str) -> torch.Tensor:
        zeros = torch.full((9,), -0.0, device=device).bfloat16()
        x = torch.ones(64, device=device).bfloat16()
        return x.index_put((torch.arange(9, device=device),), zeros)

    agree(put)


def test_heaviside_of_nan() -> None:
    agree(lambda d: torch.heaviside(torch.tensor(FLOATS).to(d), torch.full((13,), 7.0).to(d)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_next_number(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    given = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, info.max, info.min, info.tiny, -info.tiny]
    x = torch.tensor(given, dtype=dtype)
    a, b = x.repeat(len(given)), x.repeat_interleave(len(given))
    agree(lambda d: torch.nextafter(a.to(d), b.to(d)))


def test_negative_zeros_are_sorted() -> None:
    x = torch.tensor([1.0, -0.0, 0.0, -1.0, -0.0])
    agree(lambda d: x.to(d).sort(stable=True)[0])
    agree(lambda d: x[:1].mul(-0.0).to(d).repeat(5).median())


def test_cumulative_maxima_of_zeros_are_the_ones_at_their_index() -> None:
    x = torch.tensor([[-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]])
    for function in (torch.cummax, torch.cummin):
        agree(lambda d: function(x.to(d), 1)[0])  # noqa: B023


def test_a_cumulative_maximum_of_long_expressions() -> None:
    x, y = (t.half().view(13, 13) for t in pairs(torch.float16))
    agree(lambda d: (torch.nextafter(x.to(d), y.to(d)) * y.to(d)).cummax(1)[0])


def test_a_complex_number_is_true_by_either_part() -> None:
    parts = torch.tensor([0.0, -0.0, 1.0, NAN])
    numbers = torch.complex(parts.repeat(4), parts.repeat_interleave(4))
    agree(lambda d: (numbers.to(d) * 2).bool())
    agree(lambda d: torch.zeros(16, dtype=torch.bool, device=d).copy_(numbers.to(d) * 2))
    agree(lambda d: (numbers.to(d) * 2).bool().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_roots_that_are_written_as_powers(dtype: torch.dtype) -> None:
    for exponent in (0.5, -0.5, 2.0, 1.0):
        agree(lambda d: torch.tensor([INF, -INF, 0.0, -0.0, 4, NAN], dtype=dtype).to(d) ** exponent)  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quotients_are_cut_after_they_are_rounded(dtype: torch.dtype) -> None:
    above, below = torch.ones(9, dtype=dtype), torch.full((9,), 0.1001, dtype=dtype)
    agree(lambda d: torch.div(above.to(d), below.to(d), rounding_mode="trunc"))
    agree(lambda d: torch.div(above.to(d), 0.1001, rounding_mode="trunc"))
    agree(lambda d: torch.div(above.to(d), below[0].to(d), rounding_mode="trunc"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_that_are_known_keep_their_type(dtype: torch.dtype) -> None:
    """1 * -1 is -1 without a type, which could not be written: "KeyError: dtypes.weakfloat"."""
    agree(lambda d: (-torch.ones(2, 7, dtype=dtype, device=d)).amax(1))
    agree(lambda d: torch.ones(2, 7, dtype=dtype, device=d).argmin(1))
    agree(lambda d: (-torch.ones(2, 7, dtype=dtype, device=d)).abs() > 0.5)


def test_an_activation_overflows_as_the_cpus() -> None:
    for dtype in (torch.float32, torch.float64):
        most = torch.finfo(dtype).max
        agree(lambda d: F.hardswish(torch.tensor([most, most / 7, 1, -2], dtype=dtype).to(d)))  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zero_is_not_below_zero(dtype: torch.dtype) -> None:
    zeros = torch.tensor([0.0, -0.0, NAN] * 11, dtype=dtype)
    agree(lambda d: F.elu(zeros.to(d), -1.5))
    agree(lambda d: torch.ops.aten.elu(zeros.to(d), 1, 1, INF))


class Called(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name.removeprefix("aten::")
        self.names.add(name if name.startswith("__") else name.removesuffix("_"))
        return func(*args, **(kwargs or {}))


def test_every_lowering_is_in_a_chain_or_named_with_a_reason() -> None:
    with Called() as called, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, operator in LAST.items():
            works = False
            for dtype in DTYPES:
                with suppress(RuntimeError, NotImplementedError, TypeError):
                    operator(*pairs(dtype))
                    works = True
            assert works, f"{name} raises on the CPU for every type, so no chain has it"
    tables = (activation, elementwise, index, reduce)
    lowered = {name.partition(".")[0] for table in tables for name in table.TABLE}
    missing = {name for name in lowered - called.names if not name.endswith("_backward")}
    assert missing == set(LEFT_OUT)


def test_places_computed_from_integers_need_no_host(portable: str) -> None:
    code = """
x, y = torch.randn(169), torch.arange(-84, 85)
def program(device):
    a, b = x.to(device), y.to(device)
    at = (b + 100) % 169
    return [a[at - 169], a.reshape(13, 13)[at % 13, at // 13], a.take((b * 3) % 169)]
for ours, theirs in zip(program("tiny"), program("cpu"), strict=True):
    assert torch.equal(ours.cpu(), theirs)
"""
    assert on_portable(portable, code, TORCH_TINY_FALLBACK="error") == []


SHARE = {"cpu": 72, "cl": 24, "webgpu": 24}
"""Chains of those that python -m tests.hostile goes through."""


@pytest.mark.parametrize("kind", SHARE)
def test_chains(kind: str) -> None:
    if kind != "cpu" and (reason := why_no_portable(kind)):
        pytest.skip(f"no {kind}: {reason}; see make devices")
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "tests.hostile", kind, f"--count={SHARE[kind]}"]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
