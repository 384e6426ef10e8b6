"""Every dtype: creation, conversion, promotion, limits, and what each cannot do."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from harness import agree, agree_on_error, numbers
from torch import Tensor

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
WIDE_UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
ALL = [*FLOATS, *COMPLEX, *INTEGERS, torch.bool]


def values(dtype: torch.dtype, where: str, seed: int = 0) -> Tensor:
    x = numbers(3, 4, seed=seed) * 3
    if dtype in (torch.uint8, *WIDE_UNSIGNED):
        x = x.abs()
    if dtype.is_complex:
        x = torch.complex(x, x.flip(0))
    return (x > 0).to(where) if dtype == torch.bool else x.to(dtype).to(where)


@pytest.mark.parametrize("dtype", [*ALL, *WIDE_UNSIGNED, *FLOAT8, torch.complex32])
def test_creation_and_movement(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = values(dtype, where)
        y = torch.zeros(3, 4, dtype=dtype, device=where)
        y.copy_(x)
        y[1] = x[0]
        return [
            x.T.clone(),
            y,
            torch.ones(2, dtype=dtype, device=where),
            x[::2].contiguous(),
            torch.empty_like(x).copy_(x),
        ]

    agree(program, device)


@pytest.mark.parametrize(("a", "b"), list(product(ALL, ALL)), ids=lambda d: str(d)[6:])
def test_conversion_and_promotion(a: torch.dtype, b: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = values(a, where), values(b, where, 1)
        results = [
            x.to(b),
            x * y,
            x == y,
            torch.where(x != 0, x, y),
            torch.cat([x, y]),
            x + y[0, 0],
            y * 2,
            x.add(torch.tensor(1, dtype=b)),
        ]
        if not (a.is_complex and not b.is_complex):
            results.append(torch.empty_like(y).copy_(x))
        return results

    agree(program, device)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("number", [2, 2.5, True, 1 - 2j], ids=str)
def test_numbers(dtype: torch.dtype, number: complex, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = values(dtype, where)
        return [
            x * number,
            number + x,
            x / 2,
            torch.full((2,), 1, dtype=dtype, device=where),
            torch.full_like(x, 1),
            x.new_tensor([0, 1]),
        ]

    agree(program, device)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_floating_functions(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = values(dtype, where)
        results = [
            x.exp(),
            x.sin(),
            x.tanh(),
            x.abs(),
            x.sqrt(),
            x.reciprocal(),
            x.sum(),
            x.mean(0),
            x @ x.T,
            x.cumsum(1),
            x.pow(3),
            x.isnan(),
            x.sigmoid(),
            x.square().sum(1),
        ]
        if not dtype.is_complex:
            results += [
                x.floor(),
                x.relu(),
                x.softmax(1),
                x.amax(0),
                x.clamp(-1, 1),
                x.erf(),
                x.log1p(),
                x.std(0),
                x.round(),
                x.frac(),
                x.nan_to_num(),
            ]
        return results

    agree(program, device)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_functions(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = values(dtype, where), values(dtype, where, 1).abs() + 1
        return [
            x + y,
            x * y,
            x // y,
            x % y,
            x & y,
            x | y,
            x ^ y,
            ~x,
            x << 1,
            x >> 1,
            x.sum(),
            x.prod(1),
            x.sort(1)[0],
            x.argmax(),
            x.cumsum(0),
            x.abs(),
            x.clamp(0, 3),
            x > y,
            x.float() / y,
            x.max(),
            x.unique(),
            x.gcd(y),
        ]

    agree(program, device)


def test_bool_functions(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = values(torch.bool, where), values(torch.bool, where, 1)
        return [
            x & y,
            x | y,
            x ^ y,
            ~x,
            x.any(),
            x.all(1),
            x.sum(),
            x.logical_not(),
            x + y,
            x * y,
            x.int() - y.int(),
            x.nonzero(),
            x.float().mean(),
            x.cumsum(0),
        ]

    agree(program, device)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        info = torch.finfo(dtype)
        x = torch.tensor(
            [
                0.0,
                -0.0,
                float("inf"),
                float("-inf"),
                float("nan"),
                info.max,
                info.tiny,
                info.smallest_normal / 4,
            ],
            dtype=dtype,
            device=where,
        )
        return [
            x,
            x + x,
            1 / x,
            x * 0,
            x.sign(),
            x.isfinite(),
            x.max(),
            x.sort()[0],
            x == x,
            torch.signbit(x),
            x.exp(),
            x.to(torch.float32),
            torch.maximum(x, x.flip(0)),
            x.sqrt(),
            torch.copysign(torch.ones_like(x), x),
        ]

    agree(program, device)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype: torch.dtype, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        info = torch.iinfo(dtype)
        x = torch.tensor([info.min, info.max, 1], dtype=dtype, device=where)
        return [x + 1, x * 2, -x, x - 1, x.abs(), x.sum(), x.to(torch.int16)]

    agree(program, device)


def test_large_integers_keep_their_bits(device: str) -> None:
    x = torch.tensor([2**62 + 1, -(2**53) - 1], device=device)
    assert (x + 1).tolist() == [2**62 + 2, -(2**53)]
    assert x[0].item() == 2**62 + 1
    assert torch.full((1,), 2**60 + 1, device=device).item() == 2**60 + 1
    assert (torch.zeros(1, dtype=torch.int64, device=device) + (2**60 + 1)).item() == 2**60 + 1


def test_numbers_keep_their_precision(device: str) -> None:
    x = torch.zeros(1, dtype=torch.float64, device=device)
    assert (x + 0.1).item() == 0.1
    assert (x + torch.tensor(0.1, dtype=torch.float64)).item() == 0.1
    assert torch.full((1,), 1e-300, dtype=torch.float64, device=device).item() == 1e-300
    assert (x.to(torch.complex128) + (0.1 + 1e-300j)).item() == 0.1 + 1e-300j


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_converts(dtype: torch.dtype, device: str) -> None:
    agree(
        lambda d: [
            values(dtype, d).float(),
            values(torch.float32, d).to(dtype).to(torch.bfloat16),
            values(dtype, d).view(torch.uint8),
        ],
        device,
    )


@pytest.mark.parametrize("dtype", WIDE_UNSIGNED)
def test_wide_unsigned(dtype: torch.dtype, device: str) -> None:
    agree(
        lambda d: [
            values(dtype, d).to(torch.int64),
            values(dtype, d) == 1,
            values(dtype, d).view(torch.uint8),
        ],
        device,
    )


def test_result_type_and_defaults(device: str) -> None:
    x = torch.ones(2, dtype=torch.int32, device=device)
    assert torch.result_type(x, 1.5) == torch.float32
    assert (x + 1.5).dtype == torch.float32
    assert (x * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float64
    assert (x + torch.ones((), dtype=torch.int64, device=device)).dtype == torch.int32
    assert torch.arange(3, device=device).dtype == torch.int64
    assert x.sum().dtype == torch.int64
    assert torch.tensor([1.0, 2], device=device).dtype == torch.float32


@pytest.mark.parametrize(
    "program",
    [
        lambda d: torch.ones(2, dtype=torch.uint16, device=d) // 2,
        lambda d: torch.ones(2, dtype=torch.float8_e5m2, device=d) + 1,
        lambda d: (
            torch.ones(2, 2, dtype=torch.bool, device=d)
            @ torch.ones(2, 2, dtype=torch.bool, device=d)
        ),
        lambda d: torch.ones(2, dtype=torch.complex64, device=d) < 1,
        lambda d: torch.ones(2, dtype=torch.complex64, device=d).max(),
        lambda d: torch.ones(2, dtype=torch.int64, device=d).exp_(),
        lambda d: torch.ones(2, dtype=torch.bool, device=d).neg(),
        lambda d: torch.ones(2, dtype=torch.complex64, device=d).floor(),
        lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d).fill_(1 - 2j),
    ],
)
def test_what_a_dtype_cannot_do(program, device: str) -> None:  # type: ignore[no-untyped-def]
    agree_on_error(program, device)


def test_integers_above_those_with_a_sign(device: str) -> None:
    large = 2**63 + 5
    for where in ("cpu", device):
        x = torch.zeros(2, dtype=torch.uint64, device=where)
        assert torch.full_like(x, large).tolist() == [large, large]
        assert torch.full((1,), large, dtype=torch.uint64, device=where).tolist() == [large]
        assert x.fill_(large).eq(large).tolist() == [True, True]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histograms_of_integers(dtype: torch.dtype, device: str) -> None:
    """Mixtures of experts count them on any device but the CPU, which counts floats."""
    x = torch.tensor([3, 0, 1, 7, 7, 2, 9, 5], dtype=dtype)
    for bins, least, most in ((8, 0, 7), (4, 0, 7), (5, 0, 0), (3, 2, 5), (10, 0, 9)):
        expected = torch.histc(x.double(), bins, least, most)
        got = torch.histc(x.to(device), bins, least, most)
        assert got.dtype == dtype
        assert got.tolist() == expected.tolist()
        out = torch.empty(0, dtype=dtype, device=device)
        assert torch.histc(x.to(device), bins, least, most, out=out) is out
        assert out.tolist() == expected.tolist()
    assert torch.histc(x[:1].to(device), 2).tolist() == torch.histc(x[:1].float(), 2).tolist()
    assert torch.histc(x[:0].to(device), 2, 0, 1).tolist() == [0, 0]
    for bound in (1e30, -1e30, math.nan, math.inf):
        with pytest.raises(RuntimeError, match="int64_t without overflow"):
            torch.histc(x[:0].to(device), 2, 0, bound)
