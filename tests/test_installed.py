"""PyTorch's own machinery beside the device: tracing, compiling, process groups, profilers."""

from __future__ import annotations

import math

import pytest
import torch
from harness import needs_tiny, python
from util import KIND

pytestmark = needs_tiny

# What every program here computes, of a tiny tensor and of the same numbers on the CPU.
FUNCTION = """
import torch, torch_tiny
def f(a, b):
    c = (a.sin() * 2 + b).relu() @ b.t()
    c[0] += 1
    return c.sum(0), c.softmax(-1)
cpu = [torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(2)]
tiny = [x.to("tiny") for x in cpu]
def agree(got):
    for one, other in zip(got, f(*cpu), strict=True):
        assert one.device.type == "tiny"
        torch.testing.assert_close(one.cpu(), other)
    print("same")
"""


def test_a_fake_tensor_under_the_python_dispatcher() -> None:
    """Autograd's kernel and the Python dispatcher called each other until the stack was full."""
    out = python("""
        import torch, torch_tiny
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses import FakeTensorMode
        mode = FakeTensorMode()
        fake = mode.from_tensor(torch.ones(3, device="tiny"))
        with mode, enable_python_dispatcher():
            print(fake.sin().device, (fake * 2).add_(1).shape)
    """)
    assert out.split() == ["tiny:0", "torch.Size([3])"]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str) -> None:
    out = python(f"""{FUNCTION}
from torch.fx.experimental.proxy_tensor import make_fx
traced = make_fx(f, tracing_mode={mode!r})(*tiny)
assert any(node.target is torch.ops.aten.sin.default for node in traced.graph.nodes)
agree(traced(*tiny))
""")
    assert out.split() == ["same"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_torch_compile(backend: str) -> None:
    """Inductor has no code for the device: there the graph is recorded as any other program is."""
    out = python(f"""{FUNCTION}
compiled = torch.compile(f, backend={backend!r}, fullgraph=True)
agree(compiled(*tiny))
agree(compiled(*tiny))
grads = []
for given, function in ((cpu, f), (tiny, compiled)):
    leaves = [x.clone().requires_grad_() for x in given]
    total, shares = function(*leaves)
    (total.sum() + shares.square().sum()).backward()
    grads.append([leaf.grad.cpu() for leaf in leaves])
torch.testing.assert_close(grads[1], grads[0])
""")
    assert out.split() == ["same", "same"]


def test_torch_export() -> None:
    out = python(f"""{FUNCTION}
class Module(torch.nn.Module):
    def forward(self, a, b):
        return f(a, b)
exported = torch.export.export(Module(), tuple(tiny))
agree(exported.module()(*tiny))
""")
    assert out.split() == ["same"]


def test_a_process_group_without_a_backend() -> None:
    """A program that uses only the CPU has the backend that it has without this package.

    And one that registers a backend for the device has it.
    """
    out = python("""
        import torch, torch_tiny
        import torch.distributed as dist
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(3)
        dist.all_reduce(x)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        model(x).backward()
        grad = model.module.weight.grad
        print(dist.get_backend_config().split(",")[0], x.tolist(), grad.tolist())
        try:
            dist.all_reduce(torch.ones(3, device="tiny"))
        except RuntimeError as error:
            print(error)
        dist.destroy_process_group()
        from torch._C._distributed_c10d import FakeProcessGroup
        def make(store, rank, size, timeout):
            return FakeProcessGroup._create_internal(rank, size)
        dist.Backend.register_backend("fake_tiny", make, devices=["tiny"])
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(3, device="tiny"))
        dist.all_reduce(torch.ones(3))
        print(dist.get_backend_config().split(",")[-1])
        dist.destroy_process_group()
    """)
    assert out.splitlines() == [
        "cpu:gloo [1.0, 1.0, 1.0] [[1.0, 1.0, 1.0]]",
        "No backend type associated with device type tiny",
        "tiny:fake_tiny",
    ]


@pytest.mark.parametrize(
    "profiler", ["autograd.profiler.profile(use_device='tiny')", "profiler.profile()"]
)
def test_profilers(profiler: str) -> None:
    out = python(f"""
        import os, torch, torch_tiny
        os.dup2(1, 2)  # PyTorch writes what goes wrong to the terminal
        x = torch.ones(4, 4, device="tiny")
        with torch.{profiler} as profile:
            (x @ x).relu().sum().item()
        print({{event.key for event in profile.key_averages()}} >= {{"aten::mm", "aten::relu"}})
    """)
    assert "Exception" not in out
    assert out.split()[-1] == "True"


@pytest.mark.skipif(KIND != "cpu", reason="shows what the host measured")
def test_a_profiler_of_the_device_measures_it() -> None:
    out = python("""
        import torch, torch_tiny
        x = torch.ones(300, 300, device="tiny")
        with torch.autograd.profiler.profile(use_device="tiny") as profile:
            (x @ x).sum().item()
        times = {event.key: event.device_time_total for event in profile.key_averages()}
        print(times["aten::mm"] > 0)
    """)
    assert out.split()[-1] == "True"


def test_torch_script_writes_where_a_mask_is_set() -> None:
    """Its lists of indices are of a type of their own, and their tensors stayed on the device."""
    script = torch.jit.CompilationUnit("""
        def mask(x):
            x[x < 5] = 1.0
            return x
        def rows(x):
            x[0] = 1.0
            x[:, 1] = 2.0
            x[torch.tensor([1], device=x.device)] = 3.0
            return x[x > 2]
    """)
    for function, shape in ((script.mask, (10,)), (script.rows, (3, 4))):
        for _ in range(3):
            x = torch.arange(float(math.prod(shape))).reshape(shape)
            assert function(x.to("tiny")).tolist() == function(x).tolist()
