"""Sums of any length are as exact as the CPU's: see tests/reductions.py. And named cases."""

import math
from collections.abc import Callable
from pathlib import Path

import compiled_program
import pytest
import reductions
import torch
from harness import needs_cpu_memory, needs_tiny, on_portable, python

from torch_tiny.engine import codegen
from torch_tiny.lower import reduce as lowered
from torch_tiny.uops import UOp, buffer_param, dtypes

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes

SIZES = (1, 7, 257, 1021, 65537, (1 << 20) - 3)
PROGRAM = "from tests import reductions\nreductions.main({sizes!r})\n"


@pytest.mark.parametrize("size", SIZES)
def test_compiled_reductions_are_as_exact_as_the_cpus(size: int) -> None:
    code = "import torch_tiny\n" + PROGRAM.format(sizes=[str(size)])
    python(code, timeout=300, TORCH_TINY_DEVICES="cpu", TORCH_TINY_ENGINE="uop")


@pytest.mark.parametrize("size", [257, 65537])
def test_portable_reductions_are_as_exact_as_the_cpus(portable: str, size: int) -> None:
    on_portable(portable, PROGRAM.format(sizes=[str(size)]), TORCH_TINY_FALLBACK="error")


# What a program does in default mode while its kernels are compiled and timed.
DEFAULT = """
import time, torch
from torch_tiny import _C
from torch_tiny.engine import service
{make}
def is_decided():
    regions = [region for plan in _C.plans(0) for region in plan["regions"]]
    return bool(regions) and all(region["engine"] for region in regions)
want = f("cpu")
end = time.monotonic() + 240
while not is_decided():
    assert time.monotonic() < end, (_C.plans(0), service.engine.counts)
    got = f("tiny").cpu()
    assert abs(got.double() - exact) <= 4 * max(abs(want.double() - exact), unit), (got, want)
    while service.engine.counts.waiting and time.monotonic() < end:
        time.sleep(0.05)
"""


def in_default_mode(make: str, cache: Path) -> None:
    """make: f(device), its exact result, and a unit in the last place of that."""
    python(
        DEFAULT.format(make=make),
        timeout=300,
        TORCH_TINY_DEVICES="cpu",
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_CACHE=str(cache),
    )


def test_deviation_around_a_large_mean_while_it_is_timed(tmp_path: Path) -> None:
    make = """
def f(device):
    return ((torch.arange(2000000, device=device) % 7) + 1e5).std()
exact, unit = 2.0, 2.0**-22
"""
    in_default_mode(make, tmp_path)


def test_sum_of_a_prime_number_of_elements(tmp_path: Path) -> None:
    make = """
x = torch.rand(15485863, generator=torch.Generator().manual_seed(0))
on = {"cpu": x, "tiny": x.to("tiny")}
def f(device):
    return on[device].sum()
exact = x.double().sum()
unit = exact * 2.0**-23
"""
    in_default_mode(make, tmp_path)


# --- each way to write a region ---

REDUCTIONS: dict[str, tuple[Callable[..., UOp], Callable[[torch.Tensor, list[int]], torch.Tensor]]]
REDUCTIONS = {
    "sum": (lowered.sums, lambda x, dims: x.sum(dims)),
    "variance": (lambda x, dims: lowered.var_mean(x, dims)[0], lambda x, dims: x.var(dims)),
    "norm": (
        lambda x, dims: lowered.vector_norm(x, 2, dims),
        lambda x, dims: torch.linalg.vector_norm(x, dim=dims),
    ),
}


@pytest.mark.parametrize("variant", codegen.VARIANTS)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((40009,), [0]), ((9, 4099), [1]), ((4099, 24), [0]), ((67, 9, 131), [0, 2])],
    ids=["all", "rows", "columns", "around"],
)
def test_every_variant_is_exact(variant: str, shape: tuple[int, ...], dims: list[int]) -> None:
    """Also the ways that timing on this machine would not choose."""
    source = buffer_param(0, dtypes.float32, math.prod(shape)).reshape(shape)
    values = [ours(source, dims) for ours, _ in REDUCTIONS.values()]
    size = math.prod(values[0].shape)
    outputs = {1 + k: value.reshape((size,)) for k, value in enumerate(values)}
    buffers = [(dtypes.float32, math.prod(shape)), *((dtypes.float32, size) for _ in values)]
    program = codegen.generate(buffers, outputs, variant)
    library = compiled_program.loaded(program.source)
    for kind in ("uniform", "large mean", "cancelling", "constant"):
        x = reductions.DATA[kind](shape, "cpu")
        results = [torch.empty(size) for _ in values]
        arrays = [t.numpy() for t in (x.flatten(), *results)]
        compiled_program.run(program, library, arrays)
        for (name, (_, theirs)), got in zip(REDUCTIONS.items(), results, strict=True):
            exact = theirs(x.double(), dims)
            floor = reductions.EPS * x.double().norm().item() if name == "sum" else 0.0
            found = reductions.ratio(got.reshape(exact.shape), [theirs(x, dims)], exact, floor)
            assert found <= reductions.MOST, (name, kind)


def test_work_of_a_long_odd_sum_is_that_of_its_elements() -> None:
    """The core takes 64 bits of it, and decides on threads by it."""
    n = 15485863
    value = lowered.var_mean(buffer_param(0, dtypes.float32, n))[0].reshape((1,))
    program = codegen.generate([(dtypes.float32, n), (dtypes.float32, 1)], {1: value})
    assert n < sum(kernel.work for kernel in program.kernels) < 100 * n
