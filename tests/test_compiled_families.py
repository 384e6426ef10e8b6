"""Families of operators with everything compiled, beyond what the operator database asks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import agree, needs_cpu_memory, needs_tiny, numbers
from test_nn import NETS
from util import DEVICE

from torch_tiny import _C
from torch_tiny.engine.compile import compile_trace

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.usefixtures("everything_compiled"),
]

F = torch.nn.functional


def compiled(program: Callable[[str], Any]) -> None:
    """The program agrees once its calls have been seen, and are compiled."""
    program(DEVICE)
    agree(program, DEVICE)


def complex_numbers(device: str, *shape: int) -> torch.Tensor:
    return torch.complex(numbers(*shape), numbers(*shape, seed=1)).to(device)


def test_parts_of_complex_memory_are_views() -> None:
    def program(device: str) -> list[torch.Tensor]:
        z = complex_numbers(device, 3, 4)
        z.real.mul_(2)
        z.conj().imag.add_(1)
        z.conj()[1] = 3 + 4j
        torch.view_as_real(z)[2, :, 0] = 5.0
        z.t()[1:3] *= z.t()[:2].conj() * (0.5 - 1j)
        return [z, z.imag, z.conj() @ z.t(), z.conj().imag.clone()]

    compiled(program)


@pytest.mark.parametrize("rows", [3, 4, 5, 6])
@pytest.mark.parametrize("columns", [2, 3, 4, 9])
def test_complex_rows_trade_places(rows: int, columns: int) -> None:
    """The rows between them stay: gcc 12 loaded them under the mask of others, and wrote zeros."""

    def program(device: str) -> torch.Tensor:
        z = complex_numbers(device, rows, 1, columns)
        z[0], z[-1] = z[-1].clone(), z[0].clone()
        return z

    compiled(program)


def test_integers_that_nobody_reads() -> None:
    """tinygrad marks them as invalid, also where a sealed addition takes them."""

    def program(device: str) -> torch.Tensor:
        x = torch.empty_strided((2, 3), (1, 2), dtype=torch.int64, device=device).fill_(7)
        below = x.diagonal(-1, 0, 1)
        x[1, 2] = -3
        x.as_strided((1,), (2,), 0).add_(below.clone())
        below.index_fill_(0, torch.tensor([0], device=device), 1)
        return x

    compiled(program)


def test_copies_that_write_nothing_in_some_loops() -> None:
    """The padding of a convolution's gradient: the stride of a place that is nowhere is unknown."""
    net, shape = NETS["conv1d_3d"]()
    net.to(DEVICE)

    def step() -> None:
        net.zero_grad()
        net(numbers(2, *shape[1:]).to(DEVICE)).sum().backward()
        torch.tiny.synchronize()

    _C.set_mode("aten")
    try:
        step()
        step()
        _C.listen(True)
        step()
    finally:
        traces = _C.listen(False)
        _C.set_mode("uop")
    assert traces
    for trace in traces:
        assert not compile_trace(trace).plan.failed


WRITES_AT_AN_INDEX: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda view, index: view.index_fill_(-1, index, 0.5),
    lambda view, index: view.index_copy_(-1, index, view.clone() + 5),
    lambda view, index: view.masked_fill_(index > 0, 4.0),
    lambda view, index: view.scatter_(-1, index.expand(view.shape), 7.0),
]


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_writes_at_an_index_leave_alone_what_lies_before_a_view(stride: int, offset: int) -> None:
    def program(device: str) -> list[torch.Tensor]:
        index = torch.tensor([1, 0], device=device)
        bases = [torch.ones(8, device=device) * 3 for _ in WRITES_AT_AN_INDEX]
        for base, write in zip(bases, WRITES_AT_AN_INDEX, strict=True):
            write(base.as_strided((2,), (stride,), offset), index)
        return bases

    compiled(program)


@pytest.mark.parametrize(("shape", "of"), [((2, 1), (1, 1)), ((4, 1), (3, 1)), ((1, 4), (1, 2))])
def test_sums_scattered_into_a_view_before_its_base_is_copied(
    shape: tuple[int, int], of: tuple[int, int]
) -> None:
    """Of places that nothing is read from, even what is read elsewhere was taken for no value."""

    def program(device: str) -> torch.Tensor:
        base = torch.arange(8.0).to(device) * 1
        index = torch.zeros(of, dtype=torch.int64).to(device)
        added = torch.full(of, 7.0).to(device)
        assert base[0].item() == 0  # from here on they are memory
        base[: math.prod(shape)].view(shape).scatter_add_(shape.index(1), index, added)
        base[:4].copy_(base[4:])
        return base

    compiled(program)


def test_a_loop_of_loads_forwards_and_backwards_has_an_effect() -> None:
    """gcc 12 left out the call of its function."""

    def program(device: str) -> list[torch.Tensor]:
        base = torch.arange(40).view(8, 5).t().contiguous().to(device)
        rows = torch.arange(1000, 1010).view(2, 5).to(device)
        base[:, 2:7].index_put_((torch.tensor([2, 3]).to(device),), rows)
        column = base[:, 6]
        return [column.flip(0) + column]

    compiled(program)


def test_loads_under_one_condition_at_several_places_of_a_step() -> None:
    """gcc 12 took them from other steps, in a file with a loop that must stay scalar."""
    index = torch.tensor([[1, 4, 0], [2, 1, 3], [1, 4, 0], [1, 3, 2], [0, 2, 1], [4, 0, 3]])

    def program(device: str) -> list[torch.Tensor]:
        grid = torch.arange(48).to(torch.int16).view(6, 8).to(device) * 1
        rows = (torch.arange(80.0) + 1).view(4, 4, 1, 5).to(device) * 1
        places = index.repeat(2, 1).view(3, 4, 1, 3).to(device)
        grid.put_(
            torch.tensor([26, 12, 3]).to(device),
            torch.tensor([50, -32, 41], dtype=torch.int16).to(device),
        )
        grid[:, 5:6].zero_()
        rows.scatter_(3, places, 0)
        return [grid, rows]

    compiled(program)


def test_rows_of_nothing_at_an_index() -> None:
    def program(device: str) -> torch.Tensor:
        begun = torch.zeros(1, 0, dtype=torch.int64, device=device)
        index = torch.tensor([0, 0, 0], device=device)
        return torch.cat([begun[index // 11], (index % 11)[:, None]], 1)

    compiled(program)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", [{}, {"align_corners": True}, {"antialias": True}])
def test_images_of_doubles_are_resized_in_double(mode: str, how: dict[str, bool]) -> None:
    x = numbers(1, 1, 7, 9, dtype=torch.float64)
    for size in ((10, 13), (3, 4)):

        def program(device: str) -> torch.Tensor:
            return F.interpolate(x.to(device), size, mode=mode, **how)  # noqa: B023

        compiled(program)
        error = program(DEVICE).cpu() - program("cpu")
        assert error.abs().max() < 1e-13


def test_masks_of_known_numbers() -> None:
    """A choice between equal numbers lost its shape; the loop of an index was there twice."""

    def program(device: str) -> list[torch.Tensor]:
        number = torch.zeros((), dtype=torch.complex64, device=device)
        number.masked_scatter_(number == number.clone(), number.clone())
        base = torch.zeros(3, dtype=torch.bool, device=device)
        column = base.unsqueeze(1)
        base.resize_((2, 3)).fill_(True)
        column.masked_scatter_(column == column.clone(), column.clone())
        return [number, column, base]

    compiled(program)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_powers_of_e_that_overflow(dtype: torch.dtype) -> None:
    """A real number stays one; a part may fit where the length does not."""
    sizes = (89.0, 90.0, 100.0, 710.0, 800.0, math.inf, -math.inf, 1.0)

    def program(device: str) -> list[torch.Tensor]:
        real = [complex(size, im) for size in sizes for im in (0.0, -0.0)]
        z = torch.tensor([*real, 90 + 3j, 710 - 3j], dtype=dtype, device=device)
        results = [z.exp(), z[: len(real)].sinh(), z[: len(real)].cosh()]
        return [torch.view_as_real(one) for one in results]

    compiled(program)


def test_complex_products_begin_with_one() -> None:
    def program(device: str) -> list[torch.Tensor]:
        z = complex_numbers(device, 5, 3)
        z[1, 0] = complex(math.inf, 1)
        z[2, 1] = complex(math.inf, -math.inf)
        return [z.prod(1), z[:, :1].prod(1), z.prod(), torch.view_as_real(z[4, 2:].prod())]

    compiled(program)


def test_decompositions() -> None:
    """The one thing for which the worker imports torch."""

    def program(device: str) -> list[torch.Tensor]:
        x = numbers(4, 6).to(device)
        z = complex_numbers(device, 4, 3)
        return [
            torch.linalg.cross(x[:, :3], x[:, 3:]),
            torch.linalg.cross(z, x[:, 3:].to(z.dtype)),
            F.soft_margin_loss(x, x.sign()),
            torch.special.xlog1py(x, x.abs()),
        ]

    compiled(program)


def test_complex_gradients() -> None:
    def program(device: str) -> list[torch.Tensor]:
        z = complex_numbers(device, 4, 5).requires_grad_()
        x = numbers(5, seed=2).to(device).requires_grad_()
        y = (torch.tanh(z * x) / (z.exp() + 2j)).abs().sum() + (z @ z.conj().t()).angle().sum()
        return list(torch.autograd.grad(y, (z, x)))

    compiled(program)


@pytest.mark.parametrize("n", [1, 2, 64, 66, 97, 134, 1000])
def test_fourier_transforms_of_any_length(n: int) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(2, n).to(device).requires_grad_()
        spectrum = torch.fft.rfft(x, norm="ortho")
        back = torch.fft.irfft(spectrum, n, norm="ortho")
        (slope,) = torch.autograd.grad(spectrum.abs().sum(), x)
        return [spectrum, back, slope, torch.fft.ifft(torch.fft.fft(x.t(), dim=0), dim=0)]

    compiled(program)


@pytest.mark.parametrize(
    ("descending", "dtype"),
    [(False, torch.float32), (True, torch.bfloat16), (True, torch.int64)],
)
def test_long_sorts(descending: bool, dtype: torch.dtype) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = (numbers(2, 1100) * 50).round()
        x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
        x[1, :2] = torch.tensor([-0.0, 0.0])
        x = (x if dtype.is_floating_point else x.nan_to_num(7, 8, 9)).to(dtype).to(device)
        values, order = x.sort(dim=1, stable=True, descending=descending)
        return [values, order, x.median(dim=1)[0], x.topk(4, dim=1)[0].sort()[0]]

    compiled(program)


def test_sums_of_stacks() -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(3, 3, 1).to(device)
        stacked = torch.stack([x, x * 2], 2)
        return [stacked.sum(), stacked.mean((0, 2)), torch.cat([x, x], 1).amax()]

    compiled(program)


@pytest.mark.parametrize("n", [255, 256, 257, 5000])
def test_long_scans(n: int) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(3, n).to(device)
        whole = (x * 10).long()
        best, last = (x * 3).round().cummax(1)
        with_nan = x.clone()
        with_nan[1, n // 2] = math.nan
        return [x.double().cumsum(1), whole.cumsum(1), (x * 0.01 + 1).double().cumprod(1), best,
                last, *with_nan.cummin(1), x.double().logcumsumexp(1)]  # fmt: skip

    compiled(program)


@pytest.mark.parametrize("last", ["softmax", "argmax", "std", "max"])
def test_sums_in_sums_that_are_needed_twice(last: str) -> None:
    """Of numbers that no memory holds: one loop ended in two places, and no order was left."""

    def program(device: str) -> torch.Tensor:
        y = torch.ones(97, device=device).cumsum(0)
        y = y + y.roll(1)
        z = (y.view(-1, 1) * y[:5]).sum(1) / 1000
        return z.softmax(0) if last == "softmax" else getattr(z, last)()

    compiled(program)


def test_operators_in_place() -> None:
    def program(device: str) -> torch.Tensor:
        y = torch.arange(97, dtype=torch.int8).to(device, copy=True)
        y <<= 2
        y += 1
        y >>= 1
        y &= 77
        y |= 2
        y ^= 5
        return y

    compiled(program)


def test_triangles_of_diagonals_far_outside() -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(2, 3, 5).to(device)
        far = (-(2**40), -4, -3, 3, 5, 6, 2**31 - 1, 2**40)
        return [f(x, diagonal) for f in (torch.tril, torch.triu) for diagonal in far]

    compiled(program)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_pixels_are_shuffled(lead: tuple[int, ...]) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(*lead, 8, 3, 5).to(device)
        y = F.pixel_shuffle(x, 2)
        return [y, F.pixel_unshuffle(y, 2), F.channel_shuffle(x.view(-1, 8, 3, 5), 4)]

    compiled(program)


def test_masks_that_count() -> None:
    def program(device: str) -> list[torch.Tensor]:
        x, mask = numbers(6, 50).to(device), (numbers(6, 50, seed=1) > 0).to(device)
        y = x.masked_scatter(mask, numbers(300, seed=2).to(device))
        count = int(mask.sum())
        z = x.clone()
        z[mask] = numbers(count, seed=3).to(device)
        return [y, z, torch.nonzero_static(mask, size=200, fill_value=-1)]

    compiled(program)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention(causal: bool, heads: int) -> None:
    def program(device: str) -> list[torch.Tensor]:
        q = numbers(2, 4, 7, 8).to(device).requires_grad_()
        k, v = (numbers(2, heads, 7, 8, seed=s).to(device).requires_grad_() for s in (1, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != 4)
        return [out, *torch.autograd.grad((out * out).sum(), (q, k, v))]

    compiled(program)


_BESSEL = (
    torch.special.bessel_j0,
    torch.special.bessel_j1,
    torch.special.bessel_y0,
    torch.special.bessel_y1,
)


def test_special_functions_over_their_range() -> None:
    def program(device: str) -> list[torch.Tensor]:
        a, x = ((numbers(500, seed=s) * 5).exp2().to(device) for s in (0, 1))
        odd = torch.tensor([0.0, -0.0, 3e-42, -1e-40, math.inf, -math.inf, math.nan, 3.4e38])
        line = torch.linspace(-30, 20, 301).to(device)
        edges = [torch.tensor([0.0, 1, 2, math.inf, math.nan, -1]).to(device),
                 torch.tensor([0.0, 0, math.inf, 2, 1, 1]).to(device)]  # fmt: skip
        return [torch.igamma(a, x), torch.igammac(a, x), torch.igamma(*edges),
                torch.igammac(*edges), *torch.frexp(odd.to(device)),
                torch.special.airy_ai(line),
                *(f(v) for v in (line, odd.to(device)) for f in _BESSEL)]  # fmt: skip

    compiled(program)


def test_powers_of_integers() -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = torch.tensor([0, 1, -1, 2, -3, 7, 0, 1, -1, 5]).to(device)
        n = torch.tensor([0, 70, 71, 63, 33, 5, 3, 0, 0, 2]).to(device)
        return [x**n, x.int() ** n.int(), x.abs().to(torch.uint8) ** n.to(torch.uint8)]

    compiled(program)


def test_gradient_scaling() -> None:
    def program(device: str) -> list[torch.Tensor]:
        results = []
        for bad in (False, True):
            grads = [numbers(5).to(device), numbers(3, 2, seed=1).to(device)]
            if bad:
                grads[1][1, 0] = math.inf
            found = torch.zeros(1, device=device)
            scale = torch.full((1,), 4.0, device=device)
            streak = torch.full((1,), 1, dtype=torch.int32, device=device)
            inverse = torch.full((1,), 0.25, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            torch._amp_update_scale_(scale, streak, found, 2.0, 0.5, 2)
            results += [*grads, found, scale, streak]
        return results

    compiled(program)


def test_bytes_wrap_around_inside_a_kernel() -> None:
    """C computes with them as int, and tinygrad as with numbers that have no end."""

    def program(device: str) -> list[torch.Tensor]:
        a = torch.arange(256, dtype=torch.uint8, device=device)
        b = a.flip(0)
        return [-a > b, (a - b).float(), (a - 1).maximum(b), (a * 3 + 200) >> 1, (a + 200) < 100]

    compiled(program)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [1.02, 1.3, 2.02])
def test_interpolation_by_a_scale_beside_the_lengths(mode: str, scale: float) -> None:
    """Where a length stays or doubles some of PyTorch's kernels do not look at the scale."""
    shapes = {"linear": [(1, 2, 3)], "bilinear": [(1, 2, 3, 5)], "bicubic": [(1, 2, 3, 5)]}

    def program(device: str) -> list[torch.Tensor]:
        found = []
        for shape in shapes.get(mode, [(1, 2, 3), (1, 2, 3, 5)]):
            x = numbers(*shape).to(device).requires_grad_()
            y = F.interpolate(x, scale_factor=(scale, 1.25)[: len(shape) - 2], mode=mode)
            found += [y, *torch.autograd.grad(y.square().sum(), x)]
        return found

    compiled(program)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_with_their_last_offset(mode: str, needs_gradient: bool) -> None:
    """Those without a gradient are another operator, with sizes of another length."""

    def program(device: str) -> list[torch.Tensor]:
        weight = numbers(10, 4).to(device).requires_grad_(needs_gradient)
        rows = torch.tensor([1, 1, 7, 9, 0, 3, 3], device=device)
        offsets = torch.tensor([0, 2, 5, 7], device=device)
        bags = F.embedding_bag(rows, weight, offsets, mode=mode, include_last_offset=True)
        if not needs_gradient:
            return [bags]
        return [bags.detach(), *torch.autograd.grad(bags.square().sum(), weight)]

    compiled(program)


@pytest.mark.parametrize("window", [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (7, 3, 3, 1)])
def test_pooling_tells_where_the_last_nan_is(window: tuple[int, int, int, int]) -> None:
    """And the first element where all are the smallest there is."""
    size, stride, padding, dilation = window

    def program(device: str) -> list[torch.Tensor]:
        x = numbers(2, 3, 12, 12)
        x[0, :, ::3, ::2] = math.nan
        x[1, 0] = -math.inf
        found = F.max_pool2d(x.to(device), size, stride, padding, dilation, return_indices=True)
        return list(found)

    compiled(program)


DEFAULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "quotient": lambda x: x / 3,
    "root": lambda x: x.sqrt(),
    "product": lambda x: [x * 1.1, x * (1.1 + 0.3j), (x > 3) * 0.7],
    "comparison": lambda x: [x > 16777216.5, torch.where(x > 3, x, 0.1), x.clamp(min=1.3)],
    "mean": lambda x: [(x * 0.1).mean(), (x / 7).std(), x.float() * 0.1, x.double() * 0.1],
    "creation": lambda x: [
        torch.arange(0, 1, 0.1, device=x.device) + x[:10],
        torch.full((3,), 0.1, device=x.device) * 3,
        torch.linspace(0, 1, 7, device=x.device) + torch.ones(7, device=x.device),
    ],
}


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_type_is_that_of_the_recording(name: str, default: torch.dtype) -> None:
    def program(device: str) -> Any:
        return DEFAULTS[name](torch.arange(16777200, 16777232, device=device))

    torch.set_default_dtype(default)
    try:
        compiled(program)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_several_nans_the_last_is_the_greatest(k: int) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(2, 3, *[6] * k).to(device)
        x[(..., *[0] * k)] = x[(..., *[1] * k)] = torch.nan
        x.requires_grad_()
        results = [
            getattr(F, f"adaptive_max_pool{k}d")(x, 2, return_indices=True),
            getattr(F, f"max_pool{k}d")(x, 3, return_indices=True),
        ]
        if k > 1:
            samples = torch.full((2, 3, k), 0.3, device=device)
            fractional = getattr(F, f"fractional_max_pool{k}d_with_indices")
            results.append(fractional(x, 2, 3, _random_samples=samples))
        found = [tensor for pair in results for tensor in pair]
        found.append(torch.autograd.grad(sum(v.sum() for v, _ in results), x)[0])
        return found

    compiled(program)


def test_one_element_is_written_before_a_gather() -> None:
    def program(device: str) -> torch.Tensor:
        z = complex_numbers(device, 2, 4)
        z[1, 3] = torch.zeros((), dtype=z.dtype, device=device)
        return z.gather(-1, torch.tensor([[3, 0, 1, 3], [3, 3, 2, 0]]).to(device))

    compiled(program)


@pytest.mark.parametrize("name", ["modified_bessel_k", "scaled_modified_bessel_k"])
@pytest.mark.parametrize("order", [0, 1])
def test_bessel_functions_of_small_numbers(name: str, order: int) -> None:
    def program(device: str) -> torch.Tensor:
        x = torch.tensor([1e-30, 1e-12, 1e-6, 9e-5, 2e-4, 1e-2, 3.0], dtype=torch.float64)
        found: torch.Tensor = getattr(torch.special, f"{name}{order}")(x.to(device))
        return found

    compiled(program)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_end_at_the_first_negative_one(reduction: str) -> None:
    def program(device: str) -> list[torch.Tensor]:
        x = numbers(3, 5).to(device).requires_grad_()
        target = torch.tensor([[0, 2, -1, 1, 1], [3, 3, 4, -1, -1], [-1, 0, 0, 0, 0]]).to(device)
        loss = F.multilabel_margin_loss(x, target, reduction=reduction)
        one = F.multilabel_margin_loss(x[0], target[0], reduction=reduction)
        return [loss, one, *torch.autograd.grad(loss.sum() + one, x)]

    compiled(program)
