"""Operators that need no host on portable devices: special functions, segments, comparisons."""

import pytest
from harness import needs_cpu_memory, needs_tiny
from harness import on_portable as run

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes


@pytest.fixture
def kind(portable: str) -> str:
    return portable


def test_special_functions(kind: str) -> None:
    """Also at poles, between them, near zeros and far out."""
    code = """
from torch import special
nan, inf = float("nan"), float("inf")
g = torch.Generator().manual_seed(0)
x = torch.cat([*(torch.randn(300, generator=g) * s for s in (1e-3, 1, 10)),
               torch.linspace(0.9, 2.1, 50), torch.tensor([nan, inf, -inf, 0.0, -0.0, -3, 1e36])])
a = (torch.randn(600, generator=g) * 5).exp2()
b = torch.cat([(torch.randn(300, generator=g) * 5).exp2(), a[300:] + a[300:].sqrt()])
edges = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1, -1, 1e-30, 1e30])
pairs = edges.repeat(9), edges.repeat_interleave(9)
bessel = [getattr(special, f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")]
def program(device):
    v = x.to(device).requires_grad_()
    values = [torch.lgamma(v)]
    values += torch.autograd.grad(values[0][:900].sum(), v)
    # The CPU's waves of float32 are off by more, the further out they are.
    values += [f(v[:-1]) for f in bessel]
    values += [f(*(t.to(device) for t in of)) for f in (torch.igamma, torch.igammac)
               for of in ((a, b), pairs)]
    return [t.detach() for t in values]
for ours, theirs in zip(program("tiny"), program("cpu"), strict=True):
    torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True, rtol=1e-4, atol=1e-5)
    zero = theirs == 0
    assert torch.equal(ours.cpu()[zero].signbit(), theirs[zero].signbit())
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_the_inverse_of_erf_near_one(kind: str) -> None:
    code = """
x = torch.cat([torch.linspace(-1, 1, 201), 1 - torch.logspace(-7.2, -1, 60), torch.tensor([1.5])])
ours, exact = torch.erfinv(x.to("tiny")).cpu(), torch.erfinv(x.double()).float()
torch.testing.assert_close(ours, exact, equal_nan=True, rtol=1e-6, atol=0)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_equal_is_found_on_the_device(kind: str) -> None:
    code = """
x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
y = x.to("tiny")
print(torch.equal(y, y), torch.equal(y, y + 1), torch.equal(y, y[:3]), torch.equal(y[:0], y[:0]))
print(torch.equal(y.t(), x.t().contiguous().to("tiny")), torch.equal(y / 0, y / 0))
print(torch.equal(y * float("nan"), y * float("nan")), torch.equal(y > 0, y > 0))
"""
    expected = ["True False False True", "True True", "False True"]
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == expected


def test_random_slopes_and_their_derivative(kind: str) -> None:
    code = """
x = torch.linspace(-2, 1, 99, device="tiny").requires_grad_()
for training in (True, False):
    y = F.rrelu(x, 0.2, 0.7, training=training)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, x * slope)
    low, high = (0.2, 0.7) if training else (0.45, 0.45)
    below, above = slope[x <= 0].cpu(), slope[x > 0].cpu()
    assert (above == 1).all() and (below >= low - 1e-6).all() and (below <= high + 1e-6).all()
    torch.manual_seed(3)
    first = F.rrelu(x, training=training)
    torch.manual_seed(3)
    assert torch.equal(first, F.rrelu_(x.detach().clone(), training=training))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_the_old_cholesky(kind: str) -> None:
    code = """
warnings.simplefilter("ignore")
x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
x = x @ x.mT + torch.eye(4)
for upper in (False, True):
    ours, theirs = torch.cholesky(x.to("tiny"), upper), torch.cholesky(x, upper)
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs)
x[1, 2, 2] = -1
def message(x):
    try:
        torch.cholesky(x)
    except RuntimeError as error:
        return str(error)
assert message(x.to("tiny")) == message(x), message(x.to("tiny"))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_segments(kind: str) -> None:
    code = """
x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
lengths = torch.tensor([2, 0, 4])
def program(device):
    values = []
    for how in ("sum", "mean", "max", "min", "prod"):
        v = x.to(device).requires_grad_()
        y = torch.segment_reduce(v, how, lengths=lengths.to(device), initial=1.0)
        values += [y.detach(), *torch.autograd.grad(y.sum(), v)]
        values.append(torch.segment_reduce(x.to(device), how, offsets=lengths.cumsum(0).to(device)))
    return values
for ours, theirs in zip(program("tiny"), program("cpu"), strict=True):
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_segments_of_wrong_lengths_raise(kind: str) -> None:
    code = """
def message(device, lengths):
    try:
        x = torch.ones(6, device=device)
        torch.segment_reduce(x, "sum", lengths=torch.tensor(lengths, device=device)).tolist()
    except RuntimeError as error:
        return str(error).splitlines()[0].partition(" (raised")[0]
print(message("tiny", [2, 4]))
for lengths in ([2, 3], [2, 5], [-1, 7]):
    assert message("tiny", lengths) == message("cpu", lengths), message("tiny", lengths)
"""
    assert run(kind, code) == ["None"]


def test_addbmm_makes_its_tensor_as_large_as_the_product(kind: str) -> None:
    code = """
g = torch.Generator().manual_seed(0)
a, b = torch.randn(2, 3, 4, generator=g), torch.randn(2, 4, 5, generator=g)
for shape in ((), (1,), (3, 5)):
    x = torch.randn(shape, generator=g)
    warnings.simplefilter("ignore")
    y = x.to("tiny").addbmm_(a.to("tiny"), b.to("tiny"), beta=0.5, alpha=2)
    x.addbmm_(a, b, beta=0.5, alpha=2)
    assert y.stride() == x.stride()
    torch.testing.assert_close(y.cpu(), x)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []
