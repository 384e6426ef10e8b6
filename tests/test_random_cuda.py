"""The portable stream on a GPU, where it is the default: the CPU's bits, whoever draws."""

import pytest
import torch
from harness import needs_tiny, python
from portable_draws import Draws, drawn

pytestmark = [
    needs_tiny,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="draws on a GPU"),
]

# PyTorch's own algorithms, on a generator of the memory's device.
OF_THE_MEMORY = {"poisson", "gamma", "rrelu"}


@pytest.fixture(scope="module")
def by_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    return drawn(tmp_path_factory.mktemp("cpu"), "aten", TORCH_TINY_DEVICES="cpu")


@pytest.mark.parametrize("engine", ["aten", "uop"])
def test_the_gpu_draws_the_same_bits(
    engine: str, by_the_cpu: Draws, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cuda")
    found = drawn(folder, engine, TORCH_TINY_DEVICES="cuda", TORCH_TINY_RNG="default")
    different = [
        name
        for name, numbers in found.items()
        if name not in OF_THE_MEMORY and not torch.equal(numbers, by_the_cpu[name])
    ]
    assert different == []
    assert len(found) > 90


def test_a_large_draw_stays_on_the_gpu() -> None:
    """By kernels of the GPU also before anything is compiled: as fast as CUDA's own, roughly."""
    code = """
import torch, torch_tiny
x = torch.empty(1 << 26, device="tiny").normal_()
y = torch.empty(1 << 26, device="tiny").bernoulli_(x.sigmoid())
near = lambda value, expected: abs(value.item() - expected) < 1e-3
print(near(x.mean(), 0), near(x.std(), 1), near(y.mean(), 0.5))
print(sum(one["bytes"] for one in torch.tiny.metrics()["traffic"]))
"""
    env = {"TORCH_TINY_DEVICES": "cuda", "TORCH_TINY_RNG": "default", "TORCH_TINY_ENGINE": "aten"}
    assert python(code, **env).split() == ["True", "True", "True", "0"]


def test_the_kernels_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache")
    code = """
import torch, torch_tiny
from torch_tiny.engine import cuda_compile
calls = []
compile = cuda_compile.compile
cuda_compile.compile = lambda *given: (calls.append(1), compile(*given))[1]
torch.rand(3, device="tiny").sum().item()
print(len(calls))
"""
    env = {"TORCH_TINY_DEVICES": "cuda", "TORCH_TINY_RNG": "default", "TORCH_TINY_ENGINE": "aten"}
    env["TORCH_TINY_CACHE"] = str(cache)
    assert [python(code, **env).strip() for _ in range(2)] == ["1", "0"]


def test_pytorchs_numbers_can_be_had() -> None:
    code = """
import torch, torch_tiny
torch.manual_seed(5)
ours = torch.randn(100, device="tiny").cpu()
torch.cuda.manual_seed(5)
print(torch.equal(ours, torch.randn(100, device="cuda").cpu()))
"""
    assert python(code, TORCH_TINY_DEVICES="cuda", TORCH_TINY_RNG="host").strip() == "True"
