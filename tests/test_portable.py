"""Portable devices: each test runs programs in a process of its own, on OpenCL and on WebGPU."""

import pytest
import torch
from harness import PORTABLE_KINDS, ROOT, needs_cpu_memory, needs_tiny, why_no_portable
from harness import on_portable as run

from torch_tiny import hosts

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes


@pytest.fixture
def kind(portable: str) -> str:
    return portable


def test_results_are_the_cpus(kind: str) -> None:
    code = """
def program(device):
    torch.manual_seed(0)
    x, y = torch.randn(64, 100), torch.randn(64, 100)
    x, y = x.to(device), y.to(device)
    x[3, :5] = 7
    x.add_(y, alpha=0.3)
    x.t()[::2].mul_(2)
    z = (x * 2 + y).softmax(1) @ y.t()
    return [x, z, z.argmax(1), x.sort(1).values, z.cumsum(0), x.unfold(1, 3, 2).amax(2), x > y]
for ours, theirs in zip(program("tiny"), program("cpu")):
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs)
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code) == ["[]"]


def test_nan_and_infinities_are_kept(kind: str) -> None:
    """The compilers behind a device may take floats for real numbers; ours must not notice."""
    code = """
nan, inf = float("nan"), float("inf")
x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -3.5])
def program(x):
    return [x - x, x / x, x * 0, (x + 1) - x, (1 + x) - 1, x.isnan(), x != x, x.isinf(), x.max(),
            torch.maximum(x, x.flip(0)), torch.fmin(x, x.flip(0)), x.nan_to_num(),
            x.exp(), x.abs().log(), x.tanh(), x.sqrt(), torch.atan2(x, -x), x.pow(3), 1 / x,
            x.clamp(-1, 1), x.copysign(-x), x.floor(), x.round(), x.argmax()]
for ours, theirs in zip(program(x.to("tiny")), program(x)):
    torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)
    if theirs.is_floating_point():
        zero = theirs == 0
        assert torch.equal(ours.cpu()[zero].signbit(), theirs[zero].signbit()), (ours, theirs)
"""
    assert run(kind, code) == []


def test_constants_below_zero_are_negated(kind: str) -> None:
    """-(-5) must not become --5, which no kernel language takes."""
    code = """
def program(device):
    x = torch.full((4,), -5.0, device=device)
    whole = torch.full((4,), -5, dtype=torch.int16, device=device)
    y = torch.ones(4, device=device)
    return [x.sigmoid(), -x, y - x, x - x, -whole, y.short() - whole]
for ours, theirs in zip(program("tiny"), program("cpu")):
    torch.testing.assert_close(ours.cpu(), theirs)
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code) == ["[]"]


def test_integers_are_exact(kind: str) -> None:
    code = """
g = torch.Generator().manual_seed(0)
for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
    info = torch.iinfo(dtype)
    a = torch.randint(info.min // 2, info.max // 2 + 1, (999,), generator=g).to(dtype)
    b = torch.randint(1, 99, (999,), generator=g).to(dtype) * torch.tensor(1).to(dtype)
    b[::2] //= -3 if info.min else 3
    b[b == 0] = 7
    for f in (torch.add, torch.sub, torch.mul, torch.floor_divide, torch.remainder, torch.fmod,
              torch.maximum, torch.lt, torch.bitwise_xor, lambda a, b: a << b.abs() % 7,
              lambda a, b: a >> b.abs() % 7, lambda a, b: a.sum(), lambda a, b: -a,
              lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda a, b: a.cumsum(0)):
        assert torch.equal(f(a.to("tiny"), b.to("tiny")).cpu(), f(a, b)), (dtype, f)
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code) == ["[]"]


def test_integers_wrap_around_inside_a_kernel(kind: str) -> None:
    """What follows gets the result in its own type, not in the one that it was computed in."""
    code = """
g = torch.Generator().manual_seed(0)
for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
    info = torch.iinfo(dtype)
    a = (torch.randint(-2**62, 2**62, (99,), generator=g) * 2 + 1).to(dtype)
    b = a.flip(0) | 1
    a[:3] = torch.tensor([info.min, info.max, 0]).to(dtype)
    for f in (lambda a, b: (a + b).float(), lambda a, b: (a * b) < b, lambda a, b: (a - b) >> 1,
              lambda a, b: (a * 3) // 5, lambda a, b: (a + info.max).long(), lambda a, b: (-a) > b,
              lambda a, b: (a << 3).float(), lambda a, b: (a * a).sum(), lambda a, b: (a - 1) ^ b,
              lambda a, b: (a.float() * 0.4 - 3).to(torch.uint8).int() * 2 if a.dtype == torch.int8
              else (a.short() * 2).int()):
        assert torch.equal(f(a.to("tiny"), b.to("tiny")).cpu(), f(a, b)), (dtype, f(a, b))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_halves_are_rounded_inside_a_kernel(kind: str) -> None:
    code = """
x = torch.randn(999, generator=torch.Generator().manual_seed(0)) * 9
x[:8] = torch.tensor([1e-5, 3e-8, 65519.0, 65520.0, -1e-6, float("inf"), -0.0, 2049.0])
for dtype in (torch.float16, torch.bfloat16):
    for f in (lambda x: x.to(dtype).float(), lambda x: (x.to(dtype) * 3.3 + x.to(dtype)).float(),
              lambda x: x.to(dtype).sub(x).abs().sum() > 0):
        assert torch.equal(f(x.to("tiny")).cpu(), f(x)), (dtype, f(x))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_numbers_of_64_bits_are_converted_exactly(kind: str) -> None:
    code = """
g = torch.Generator().manual_seed(0)
whole = torch.randint(-2**62, 2**62, (999,), generator=g) >> torch.arange(999) % 63
assert torch.equal(whole.to("tiny").float().cpu(), whole.float())
x = torch.randn(999, generator=g) * 2.0 ** (torch.arange(999) % 64 - 2)
x[:4] = torch.tensor([2.0**40, -(2.0**63), 0.5, -3e9])
x = x[x.abs() < 2.0**63]
assert torch.equal(x.to("tiny").long().cpu(), x.long())
large = whole.abs() % 2**41
for f in (lambda x: x.sum(), lambda x: x.cumsum(0), lambda x: x * 3**20, lambda x: x > 2**40,
          lambda x: x % 1000003, lambda x: x // -7, lambda x: x / 3, lambda x: x[x % 999]):
    assert torch.equal(f(large.to("tiny")).cpu(), f(large))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_quotients_and_roots_are_the_nearest_numbers(kind: str) -> None:
    code = """
g = torch.Generator().manual_seed(0)
x, y = (torch.randn(1 << 16, generator=g) * 2.0 ** torch.randint(-40, 40, (1 << 16,), generator=g)
        for _ in range(2))
y[:999] = torch.arange(1, 1000)
x[:999] = y[:999] * y[:999].flip(0)
on_device = x.to("tiny"), y.to("tiny")
for f in (torch.div, lambda x, y: x / 3, lambda x, y: 1 / y, lambda x, y: y.reciprocal(),
          lambda x, y: torch.div(x, y, rounding_mode="trunc")):
    assert torch.equal(f(*on_device).cpu(), f(x, y))
root = x.abs().double().sqrt().float()  # the CPU's own may be the next number
assert torch.equal(on_device[0].abs().sqrt().cpu(), root)
inf, nan = torch.inf, torch.nan
ends = torch.tensor([0.0, -0.0, 1, -1, inf, -inf, nan, 3e38, -2e38, 2.0**-126, 5])
result, wanted = (ends.to("tiny")[:, None] / ends.to("tiny")).cpu(), ends[:, None] / ends
normal = ~(wanted.abs() < 2.0**-126) | (wanted == 0)  # denormal numbers may be zero
torch.testing.assert_close(result[normal], wanted[normal], rtol=0, atol=0, equal_nan=True)
zeros = normal & (wanted == 0)
assert torch.equal(result[zeros].signbit(), wanted[zeros].signbit())
roots = ends.to("tiny").sqrt().cpu()
torch.testing.assert_close(roots, ends.double().sqrt().float(), rtol=0, atol=0, equal_nan=True)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_what_cannot_be_compiled_runs_on_the_host(kind: str) -> None:
    code = """
x, y = torch.tensor([6, 9]).to("tiny"), torch.tensor([4, 6]).to("tiny")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        found = torch.gcd(x, y).tolist()
print(found, len(caught), caught[0].category.__name__)
print("aten::gcd" in str(caught[0].message), caught[0].filename, caught[0].lineno)
fallbacks = torch_tiny.report().fallbacks
print([(f.reason, f.count) for f in fallbacks])
moved = {t.direction for t in torch_tiny.report().traffic}
print("run on the host" in repr(torch_tiny.report()))
"""
    assert run(kind, code) == [
        "[2, 3] 1 FallbackWarning",
        "True <string> 8",
        "[('aten::gcd', 3)]",
        "True",
    ]


def test_what_the_devices_compiler_refuses_runs_on_the_host(kind: str) -> None:
    code = f"""
from torch_tiny.portable.kinds.{kind} import KIND
theirs = KIND.template
KIND.template = lambda name, dtype: "no_such({{0}})" if name == "tanh" else theirs(name, dtype)
x = torch.arange(3.0)
y = x.to("tiny")
torch.testing.assert_close(((y * 2).tanh() + y).cpu(), (x * 2).tanh() + x)
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code, provokes="compiling failed") == ["['aten::tanh']"]


def test_fallbacks_can_be_forbidden(kind: str) -> None:
    code = """
x = torch.ones(3, dtype=torch.int64, device="tiny")
try:
    torch.gcd(x, x).tolist()
except NotImplementedError as error:
    print("TORCH_TINY_FALLBACK" in str(error))
print((x + 1).tolist())
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == ["True", "[2, 2, 2]"]


def test_bad_input_raises_as_on_the_cpu(kind: str) -> None:
    code = """
def message(f):
    try:
        f()
        torch.tiny.synchronize()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0].partition(" (raised")[0]
def ints(d, value, dtype=torch.int64):
    return torch.full((2,), value, dtype=dtype, device=d)
for f in (lambda d: torch.ones(4, device=d)[torch.tensor([9], device=d)],
          lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
          lambda d: ints(d, 1) // ints(d, 0),
          lambda d: ints(d, 1, torch.bool) - ints(d, 1, torch.bool),
          lambda d: F.embedding(torch.tensor([7], device=d), torch.ones(3, 2, device=d))):
    assert message(lambda: f("tiny")) == message(lambda: f("cpu")), message(lambda: f("tiny"))
print((torch.ones(2, device="tiny") * 3).tolist())
"""
    assert run(kind, code) == ["[3.0, 3.0]"]


def test_indices_from_data_become_addresses(kind: str) -> None:
    """Also where they are computed in the kernel, and a product of them is a shift."""
    code = """
g = torch.Generator().manual_seed(0)
x, i = torch.randn(64, 256, generator=g), torch.randint(-100, 100, (64, 256), generator=g)
y, j = x.to("tiny"), i.to("tiny")
assert torch.equal(y[j.abs() % 64, j.abs() % 256].cpu(), x[i.abs() % 64, i.abs() % 256])
assert torch.equal(y.flatten()[j.int().abs() * 64 % 4096].cpu(), x.flatten()[i.abs() * 64 % 4096])
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_indices_on_the_cpu_and_masks_need_no_host(kind: str) -> None:
    """On the CPU are those that Python makes of a list."""
    code = """
def program(device):
    x = torch.arange(12.0).reshape(4, 3).to(device).requires_grad_()
    mask = torch.tensor([True, False, True, True])
    y = x * 2
    y[[0, 2]] = 7.0
    y[mask, 1] += 1
    y[torch.tensor([3]), torch.tensor([0])] = x[1, 1]
    y[y[:, 2] > 5] -= 3
    found = [y[[1, 1, -1]], y[mask], y[:, torch.tensor([2, 0])], y[torch.tensor([[0], [3]]), [0]]]
    sum((t * t).sum() for t in found).backward()
    return [t.detach().cpu() for t in [*found, x.grad]]
torch.testing.assert_close(program("tiny"), program("cpu"), rtol=0, atol=0)
for device in ("tiny", "cpu"):
    try:
        torch.zeros(3).to(device)[[0, 3]].tolist()
    except IndexError as error:
        print(str(error).partition(" (")[0])
"""
    expected = ["index 3 is out of bounds for dimension 0 with size 3"] * 2
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == expected


def test_training_needs_no_host(kind: str) -> None:
    code = """
def train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16),
                                torch.nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x, y = torch.randn(20, 8).to(device), torch.randint(0, 3, (20,)).to(device)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack([loss.cpu() for loss in losses])
torch.testing.assert_close(train("tiny"), train("cpu"))
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code) == ["[]"]


def test_attention_stays_on_the_device(kind: str) -> None:
    code = """
x = torch.randn(2, 3, 8, 16, generator=torch.Generator().manual_seed(0))
y = x.to("tiny").requires_grad_()
ours = F.scaled_dot_product_attention(y, y * 2, y, is_causal=True)
ours.sum().backward()
print(ours.device)
x.requires_grad_()
theirs = F.scaled_dot_product_attention(x, x * 2, x, is_causal=True)
theirs.sum().backward()
torch.testing.assert_close(ours.cpu(), theirs)
torch.testing.assert_close(y.grad.cpu(), x.grad)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == ["tiny:0"]


def test_kernels_with_many_buffers_are_split(kind: str) -> None:
    """WebGPU has ten; sums that are computed beforehand come on top of what they are made of."""
    code = """
def second_derivative(x, w, v, mask):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    first = torch.autograd.grad(torch.masked.std(x, mask=mask), x, w, create_graph=True)
    return [t.cpu() for t in torch.autograd.grad(first, (x, w), v)]
generator = torch.Generator().manual_seed(0)
x, v = torch.randn(2, 5, 5, 5, generator=generator)
given = x, torch.tensor(0.7), v, torch.rand(5, 5, 5, generator=generator) < 0.5
ours = second_derivative(*(t.to("tiny") for t in given))
torch.testing.assert_close(ours, second_derivative(*given))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_diagonals_and_their_derivatives_need_no_host(kind: str) -> None:
    """Some of them: python -m tests.devices takes all through the same program."""
    names = ["trace", "block_diag", "as_strided_scatter", "a write to the diagonal"]
    file = ROOT / "tests" / "compiled_diagonals.py"
    code = f"""
import runpy, sys
sys.argv[1:] = {names}
runpy.run_path({str(file)!r}, run_name="__main__")
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == [f"ok {name}" for name in names]


def test_memory_is_counted_and_given_back(kind: str) -> None:
    code = """
x = torch.ones(1000, device="tiny") + 1
torch.tiny.synchronize()
held = torch.tiny.memory_allocated()
del x
torch.tiny.synchronize()
print(held >= 4000, torch.tiny.memory_allocated() <= held - 4000, torch.tiny.device_name())
try:
    torch.ones(3, device="tiny").numpy()
except TypeError as error:
    print("cpu" in str(error))
print(repr(torch.ones(2, device="tiny")))
"""
    assert run(kind, code) == ["True True " + kind, "True", "tensor([1., 1.], device='tiny:0')"]


def test_devices_of_several_kinds(kind: str) -> None:
    code = """
a, b = torch.arange(4.0, device="tiny:0"), torch.arange(4.0, device="tiny:1")
print(((a + 1).to("tiny:1") * b).tolist(), (b * 2).to("tiny:0").numpy().tolist())
print(torch.tiny.device_name(0), torch.tiny.device_name(1), torch.tiny.is_portable(1))
"""
    expected = ["[0.0, 2.0, 6.0, 12.0] [0.0, 2.0, 4.0, 6.0]", f"cpu {kind} True"]
    assert run(f"cpu,{kind}", code) == expected


def test_long_odd_sizes(kind: str) -> None:
    """Groups of threads are full but for the last one; a dimension of WebGPU has 65,535 groups."""
    code = """
g = torch.Generator().manual_seed(0)
for n, dtype in ((131, torch.bool), (100003, torch.float32), (100003, torch.uint8)):
    x, y = ((torch.randn(n, generator=g) * 50).to(dtype) for _ in range(2))
    a, b = x.to("tiny"), y.to("tiny")
    for f in (lambda x, y: x == y, lambda x, y: torch.cat([x, y[3:]]).flip(0),
              lambda x, y: x.roll(7) + y.float(), lambda x, y: x.float().amax()):
        assert torch.equal(f(a, b).cpu(), f(x, y)), (n, dtype)
    a[5:-3], x[5:-3] = b[5:-3], y[5:-3]
    assert torch.equal(a.cpu(), x)
close = dict(rtol=1e-4, atol=1e-3)
for rows, inner, columns in ((1009, 67, 131), (65537, 64, 3)):
    x, y = torch.randn(rows, inner, generator=g), torch.randn(inner, columns, generator=g)
    for f in (lambda x, y: x @ y, lambda x, y: y.t() @ x.t(), lambda x, y: x.sum(1),
              lambda x, y: x.sum(0), lambda x, y: x.softmax(1), lambda x, y: x.argmax(1)):
        torch.testing.assert_close(f(x.to("tiny"), y.to("tiny")).cpu(), f(x, y), **close)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_convolutions_in_tiles(kind: str) -> None:
    """Of filters, images and places; a tile may be all of a dimension."""
    code = """
g = torch.Generator().manual_seed(0)
for images, channels, filters, groups, size in (
        (4, 3, 4, 1, 20), (1, 4, 8, 2, 33), (8, 2, 5, 1, 18)):
    x = torch.randn(images, channels, size, size, generator=g)
    w = torch.randn(filters, channels // groups, 3, 3, generator=g)
    ours = [t.to("tiny").requires_grad_() for t in (x, w)]
    theirs = [t.requires_grad_() for t in (x, w)]
    got, wanted = (F.conv2d(a, b, padding=1, groups=groups) for a, b in (ours, theirs))
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    slope = torch.randn(wanted.shape, generator=g)
    for d, e in zip(torch.autograd.grad(got, ours, slope.to("tiny")),
                    torch.autograd.grad(wanted, theirs, slope)):
        torch.testing.assert_close(d.cpu(), e, rtol=1e-4, atol=1e-3)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_long_sorts_are_few_kernels(kind: str) -> None:
    """Whose compilation is what a user waits for."""
    code = """
from torch_tiny.portable import service
g = torch.Generator().manual_seed(0)
x = (torch.randn(3, 1100, generator=g) * 99).round()
x[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
whole = torch.randint(-2**60, 2**60, (1100,), generator=g)
for got, wanted in zip(x.to("tiny").sort(dim=1, stable=True), x.sort(dim=1, stable=True)):
    torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
assert torch.equal(whole.to("tiny").sort(descending=True)[1].cpu(), whole.sort(descending=True)[1])
(opened,) = service.engine._opened.values()
print(len(opened.sources) < 10)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error", TORCH_TINY_CACHE="") == ["True"]


def test_plans_are_kept_on_disk(kind: str, tmp_path: object) -> None:
    code = """
from torch_tiny.portable.service import engine
x = torch.arange(6.0).to("tiny")
print((x * x.exp()).sum().item(), engine.counts.compiles, engine.counts.cache_hits)
"""
    first, second = (run(kind, code, TORCH_TINY_CACHE=str(tmp_path))[0].split() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1:], second[1:]) == (["1", "0"], ["0", "1"])


def test_webgpu_has_no_float64() -> None:
    if reason := why_no_portable("webgpu"):
        pytest.skip(f"no webgpu: {reason}; see make devices")
    code = """
for f in (lambda: torch.ones(3, dtype=torch.float64, device="tiny"),
          lambda: torch.ones(3, device="tiny").double(),
          lambda: torch.ones(3, device="tiny").sum(dtype=torch.float64),
          lambda: torch.ones(3, dtype=torch.float64).to("tiny")):
    try:
        f()
        print("no error")
    except TypeError as error:
        print("float64" in str(error) and "float32" in str(error))
print((torch.ones(3, device="tiny") * 0.1).tolist() == (torch.ones(3) * 0.1).tolist())
"""
    assert run("webgpu", code) == ["True"] * 5


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"cl, .*webgpu"):
        hosts.parse("webcpu")
    assert set(PORTABLE_KINDS) <= set(hosts.portable_kinds())


def test_functions_are_precise(kind: str) -> None:
    """Within a few units in the last place, also where an argument is large."""
    code = """
torch.manual_seed(0)
x = torch.cat([torch.randn(500) * s for s in (1e-3, 1, 10, 1e4, 1e10)])
for name in "exp expm1 log1p sin cos tan tanh sinh cosh asinh atan erf erfc log2 exp2".split():
    f = getattr(torch, name)
    exact = f(x.double())
    ok = (exact.abs() < 3e38) & (exact.abs() > 1e-37)
    error = ((f(x.to("tiny")).cpu().double() - exact) / exact).abs()[ok].max().item()
    assert error < 8 * 2**-24, (name, error)
base, power = torch.rand(2000) * 3, torch.randn(2000) * 30
exact = base.double() ** power.double()
ok = (exact < 3e38) & (exact > 1e-37)
error = (((base.to("tiny") ** power.to("tiny")).cpu().double() - exact) / exact).abs()[ok].max()
assert error < 8 * 2**-24, error
"""
    assert run(kind, code) == []


def test_dtypes_of_portable_kinds_are_dtypes() -> None:
    from torch_tiny.portable.kind import find_kind

    for name in hosts.portable_kinds():
        assert all(isinstance(dtype, torch.dtype) for dtype in find_kind(name).lacks)


def test_results_as_large_as_the_data_says(kind: str) -> None:
    """The device counts and the host reads the count; nothing else leaves the device."""
    code = """
g = torch.Generator().manual_seed(0)
x, k = torch.randn(4, 6, generator=g), torch.randint(0, 9, (30,), generator=g)
def program(device):
    y, mask, keys = x.to(device), (x > 0).to(device), k.to(device)
    return [mask.nonzero(), y[mask], y[mask[:, 0], 1:3], y.masked_select(mask),
            *keys.unique(return_inverse=True, return_counts=True),
            *keys.unique_consecutive(return_counts=True), keys.bincount(minlength=12),
            torch.arange(4, device=device).repeat_interleave(keys[:4])]
for ours, theirs in zip(program("tiny"), program("cpu")):
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours.cpu(), theirs)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_places_of_nonzero_have_the_cpus_strides(kind: str) -> None:
    """Also where there is one of them, or none."""
    code = """
one = torch.tensor([[0, 1.0], [0, 0]])
for x in (torch.zeros(3, 4), torch.zeros(0, 3), one, torch.tensor([1.0, 0, 1]), torch.tensor(1.0)):
    theirs, ours = x.nonzero(), x.to("tiny").nonzero()
    assert ours.stride() == theirs.stride(), (x, ours.stride(), theirs.stride())
    assert torch.equal(ours.cpu(), theirs)
"""
    assert run(kind, code) == []


def test_complex_numbers_and_transforms(kind: str) -> None:
    code = """
g = torch.Generator().manual_seed(0)
x = torch.randn(3, 12, generator=g)
def program(device):
    y = x.to(device).requires_grad_()
    z = torch.fft.fft2(y)
    w = torch.fft.irfft(z[:, :7] * z[:, :7].conj(), 12)
    (slope,) = torch.autograd.grad(w.sum() + z.abs().sum(), y)
    z = z.detach().clone()
    z.imag.mul_(2)
    z[1] = z[0].conj() / (2 + 1j)
    return [z, w.detach(), slope, z @ z.t(), z.angle()]
for ours, theirs in zip(program("tiny"), program("cpu")):
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_least_squares_and_ranks(kind: str) -> None:
    """Also on a device that has no float64, in which PyTorch keeps tolerances."""
    code = """
from torch import linalg
g = torch.Generator().manual_seed(0)
x, b = torch.randn(2, 5, 3, generator=g), torch.randn(2, 5, 2, generator=g)
x[0, :, 1] = x[0, :, 0]
def program(device):
    y, right = x.to(device), b.to(device)
    tolerance = torch.tensor([0.1, 3.0], device=device)
    square = y[:, :3] + y[:, :3].mT
    return [*(r for d in ("gels", "gelsd", "gelsy", "gelss", None)
              for r in linalg.lstsq(y[1:], right[1:], driver=d)),
            *linalg.lstsq(y[1:].mT, right[1:, :3, 0]),
            linalg.lstsq(y[:, :0], right[:, :0]).solution,
            linalg.matrix_rank(y), linalg.matrix_rank(y, 0.1), linalg.matrix_rank(y, rtol=0.2),
            linalg.matrix_rank(y, atol=tolerance), linalg.matrix_rank(square, hermitian=True),
            linalg.pinv(y), linalg.pinv(y, 1e-3), linalg.pinv(y, rcond=tolerance / 100),
            linalg.pinv(y, atol=0.3), linalg.pinv(square, hermitian=True), torch.pinverse(y[1:])]
for ours, theirs in zip(program("tiny"), program("cpu")):
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_pocl_reads_our_declarations_for_the_same_functions() -> None:
    if reason := why_no_portable("cl"):
        pytest.skip(reason)
    code = """
from torch_tiny.portable import pocl
from torch_tiny.portable.kind import C_BINARY, C_UNARY, find_kind
from torch_tiny.uops import opencl
device = find_kind("cl").open(0)
x = torch.linspace(-3, 3, 64)
calls = [f"{f}(b[g])" for f in C_UNARY] + [f"{f}(b[g], b[0])" for f in C_BINARY]
body = "".join(f"a[{i * len(x)} + g] = {one};" for i, one in enumerate(calls))
text = f"__kernel void k(__global T *a, __global T *b) {{ int g = get_group_id(0); {body} }}"
def results(dtype, *head):
    given = x.to(dtype).numpy()
    name = str(dtype).removeprefix("torch.float").replace("32", "float").replace("64", "double")
    kernel, = opencl.build(device.device, [("k", text.replace("T *", f"{name} *"))], *head)
    out = bytearray(given.nbytes * len(calls))
    a, b = device.allocate(len(out)), device.allocate(given.nbytes)
    device.copy_in(b, memoryview(given).cast("B"))
    kernel([a, b], (len(x), 1, 1), (1, 1, 1))
    device.copy_out(memoryview(out), a)
    return out
if "PoCL" in opencl.version(device.device):
    for dtype in (torch.float32, torch.float64):
        assert results(dtype, pocl.declarations(), pocl.OPTION) == results(dtype)
    (torch.ones(3, device="tiny") + 1).sum().item()
    from torch_tiny.portable.service import engine
    print(engine._devices[0].opened._declares)
else:
    print(True)
"""
    assert run("cl", code) == ["True"]
