"""UOps to CUDA: what the kernels compute is what PyTorch computes on the CPU.

They run on a GPU where there is one, and always in an emulation, so that CI sees them too.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from cuda_machines import Emulator, Gpu, Machine
from test_codegen import DTYPES, FROM_UOP, ODD, close, same

from torch_tiny.engine import cuda, cuda_compile
from torch_tiny.uops import UOp, buffer_param, call, dtypes

F32 = dtypes.float32

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
needs_nvrtc = pytest.mark.skipif(not cuda_compile.version(), reason="there is no NVRTC here")


@pytest.fixture(params=["emulator", pytest.param("gpu", marks=[needs_gpu, needs_nvrtc])])
def machine(request, tmp_path: Path) -> Machine:
    torch.manual_seed(0)
    return Gpu() if request.param == "gpu" else Emulator(tmp_path)


@pytest.fixture
def compute(machine: Machine):
    """compute(fn, *tensors): runs fn over UOps; `into` names inputs that results overwrite.

    Tensors of no dimensions are numbers of the host.
    """

    def go(
        fn: Callable[..., UOp | tuple[UOp, ...]],
        *tensors: torch.Tensor,
        into: Mapping[int, int] | None = None,
        variant: str = "fused",
    ) -> tuple[torch.Tensor, ...]:
        scalars = {i for i, t in enumerate(tensors) if t.dim() == 0}
        memory = [
            t.clone() if i in scalars else t.to(machine.device, copy=True).contiguous()
            for i, t in enumerate(tensors)
        ]
        results = fn(
            *(
                buffer_param(i, DTYPES[t.dtype], t.numel()).reshape(tuple(t.shape))
                for i, t in enumerate(tensors)
            )
        )
        results = results if isinstance(results, tuple) else (results,)
        places = []
        for k, value in enumerate(results):
            if into and k in into:
                places.append(into[k])
            else:
                places.append(len(memory))
                new = torch.empty(value.shape, dtype=FROM_UOP[value.dtype], device=machine.device)
                memory.append(new)
        flat = {i: v.reshape(math.prod(v.shape)) for i, v in zip(places, results, strict=True)}
        typed = [(DTYPES[t.dtype], t.numel()) for t in memory]
        program = cuda.generate(typed, flat, scalars, variant)
        machine.load(program)
        machine.run(program, memory, scalars)
        go.program = program  # type: ignore[attr-defined]
        return tuple(memory[i].cpu() for i in places)

    return go


def softmax(x: UOp) -> UOp:
    e = (x - x.max(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: UOp, w: UOp, b: UOp) -> UOp:
    d = x - x.mean(-1, keepdim=True)
    return d * ((d * d).mean(-1, keepdim=True) + 1e-5).rsqrt() * w + b


# --- elementwise ---


@pytest.mark.parametrize("size", [1, 2, 3, 4, 31, 256, 1000, 1024, 4099])
def test_elementwise(compute, size):
    x, y = torch.randn(size), torch.randn(size)
    (got,) = compute(lambda x, y: (x * 2.0 - y) / (y * y + 1.0), x, y)
    same(got, (x * 2.0 - y) / (y * y + 1.0))
    assert len(compute.program.kernels) == 1


def test_odd_numbers(compute):
    x, y = ODD.repeat_interleave(len(ODD)), ODD.repeat(len(ODD))
    got = compute(lambda x, y: (x + y, x / y, x - x, x * 0.0), x, y)
    for a, b in zip(got, (x + y, x / y, x - x, x * 0.0), strict=True):
        same(a, b)
    got = compute(lambda x, y: (x.maximum(y), call("minimum", x, y)), x, y)
    for a, b in zip(got, (torch.maximum(x, y), torch.minimum(x, y)), strict=True):
        close(a, b, rtol=0, atol=0)  # which zero is the larger one is not said


UNARY = ("tanh", "erf", "exp", "log", "log1p", "expm1", "sin", "cos", "sqrt", "floor", "ceil")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(compute, dtype):
    x = torch.rand(333, dtype=dtype) * 4 + 0.01
    got = compute(lambda x: tuple(call(name, x) for name in UNARY), x)
    for name, one in zip(UNARY, got, strict=True):
        close(one, getattr(torch, name)(x), rtol=4e-6)


def test_functions_of_odd_numbers(compute):
    got = compute(lambda x: (call("exp", x), call("tanh", x), call("log", x), call("rint", x)), ODD)
    want = (ODD.exp(), ODD.tanh(), ODD.log(), ODD.round())
    for a, b in zip(got, want, strict=True):
        close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_odd_constants(compute, number, dtype):
    """Chosen, and as operands of functions."""
    x = torch.linspace(-2, 2, 64, dtype=dtype)
    known = torch.full_like(x, number)
    got = compute(
        lambda x: (
            (x < 0).where(x.const_like(number), x),
            call("copysign", x.const_like(number), x),
            call("copysign", x, x.const_like(number)),
        ),
        x,
    )
    want = (torch.where(x < 0, known, x), known.copysign(x), x.copysign(known))
    for a, b in zip(got, want, strict=True):
        close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 77])
def test_halves(compute, dtype, size):
    x, y = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
    x[:4] = torch.tensor([math.inf, -math.inf, math.nan, 1e-7]).to(dtype)
    got = compute(lambda x, y: (x + y, x * y, x.cast(F32)), x, y)
    for a, b in zip(got, (x + y, x * y, x.float()), strict=True):
        same(a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap(compute, dtype):
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (96,), dtype=dtype)
    y = torch.randint(info.min, info.max, (96,), dtype=dtype)
    got = compute(lambda x, y: (x + y, x * y, x - y, x.maximum(y), x < y), x, y)
    for a, b in zip(got, (x + y, x * y, x - y, torch.maximum(x, y), x < y), strict=True):
        same(a, b)


def test_types_of_different_size(compute):
    x, mask, n = torch.randn(128), torch.rand(128) > 0.5, torch.randint(-9, 9, (128,))
    got = compute(
        lambda x, m, n: (m.where(x, 0.0), x.cast(dtypes.int32), n.cast(F32) * x), x, mask, n
    )
    for a, b in zip(got, (torch.where(mask, x, 0.0), x.int(), n.float() * x), strict=True):
        same(a, b)


def test_numbers_by_value(compute):
    x = torch.randn(100)
    lr, steps = torch.tensor(0.25, dtype=torch.float64), torch.tensor(3)
    fn = lambda x, lr, n: x * lr.cast(F32).expand((100,)) + n.cast(F32).expand((100,))  # noqa: E731
    (got,) = compute(fn, x, lr, steps)
    same(got, x * 0.25 + 3)
    assert "double q" in compute.program.source and "int64_t q" in compute.program.source


# --- movement ---


def test_transpose_pad_flip(compute):
    x = torch.randn(24, 40)
    got = compute(
        lambda x: (
            x.permute((1, 0)) + 1.0,
            x.pad(((1, 2), (4, 4))) * 2.0,
            x.flip((1,)) - 1.0,
            x.shrink(((2, 10), (3, 11))) * 1.0,
        ),
        x,
    )
    want = (
        x.t() + 1.0,
        torch.nn.functional.pad(x, (4, 4, 1, 2)) * 2.0,
        x.flip(1) - 1.0,
        x[2:10, 3:11] * 1.0,
    )
    for a, b in zip(got, want, strict=True):
        same(a, b.contiguous())


def test_broadcast_bias(compute):
    x, b = torch.randn(16, 3, 8), torch.randn(3)
    (got,) = compute(lambda x, b: x + b.reshape((1, 3, 1)).expand((16, 3, 8)), x, b)
    same(got, x + b[None, :, None])


# --- reductions ---

SHAPES = [(1, 7), (3, 5), (5, 33), (70, 64), (9, 130), (6, 1000), (2, 4100), (1100, 40), (1030, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", cuda.VARIANTS)
def test_row_reductions(compute, shape, variant):
    x = torch.randn(shape)
    got = compute(lambda x: (x.sum(1), x.max(1), x.exp().mean(1)), x, variant=variant)
    for a, b in zip(got, (x.sum(1), x.amax(1), x.exp().mean(1)), strict=True):
        close(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(7, 3), (40, 40), (300, 70), (5000, 3), (2000, 33), (12, 2000)])
def test_column_sums(compute, shape):
    x = torch.randn(shape)
    got = compute(lambda x: (x.sum(0), x.max(0)), x)
    for a, b in zip(got, (x.sum(0), x.amax(0)), strict=True):
        close(a, b, atol=3e-4, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 100, 4096, 50_000, 65_537])
def test_full_sums(compute, size):
    x = torch.randn(size)
    got = compute(lambda x: (x.sum(), x.max(), (x * x).sum().sqrt()), x)
    for a, b in zip(got, (x.sum(), x.max(), (x * x).sum().sqrt()), strict=True):
        close(a, b, atol=1e-3, rtol=1e-5)


def test_reductions_over_several_dimensions(compute):
    x = torch.randn(6, 5, 4, 8)
    got = compute(lambda x: (x.sum((0, 2)), x.sum((1, 3)), x.max((0, 2, 3)), x.sum(1)), x)
    want = (x.sum((0, 2)), x.sum((1, 3)), x.amax((0, 2, 3)), x.sum(1))
    for a, b in zip(got, want, strict=True):
        close(a, b, atol=1e-4)


def test_reductions_propagate_nan(compute):
    x = torch.randn(40, 70)
    x[3, 5] = math.nan
    x[4] = -math.inf
    got = compute(lambda x: (x.max(1), x.max(0)), x)
    same(got[0], x.amax(1))
    same(got[1], x.amax(0))


def test_reductions_of_other_types(compute):
    n, d = torch.randint(-99, 99, (40, 70)), torch.randn(40, 70, dtype=torch.float64)
    m = torch.rand(40, 70) > 0.9
    got = compute(lambda n, d, m: (n.sum(1), n.max(1), d.sum(1), m.max(1)), n, d, m)
    for a, b in zip(got, (n.sum(1), n.amax(1), d.sum(1), m.any(1)), strict=True):
        close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_summed_in_float(compute, dtype):
    x = torch.rand(20, 640).to(dtype)
    (got,) = compute(lambda x: x.sum(1), x)
    close(got, x.sum(1), rtol=1e-2)


# --- rows ---


@pytest.mark.parametrize("shape", [*SHAPES, (40, 12, 20), (2, 8, 8, 36)])
@pytest.mark.parametrize("variant", cuda.VARIANTS)
def test_softmax(compute, shape, variant):
    x = torch.randn(shape) * 5
    (got,) = compute(softmax, x, variant=variant)
    close(got, x.softmax(-1))
    if variant == "fused" and math.prod(shape[:-1]) >= 8 and shape[-1] > 16:
        assert len(compute.program.kernels) == 1


@pytest.mark.parametrize("shape", [(70, 64), (9, 130), (16, 1000), (1100, 40), (12, 4096)])
def test_layer_norm(compute, shape):
    x, w, b = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    wide = lambda v: v.reshape((1, shape[1])).expand(shape)  # noqa: E731
    (got,) = compute(lambda x, w, b: layer_norm(x, wide(w), wide(b)), x, w, b)
    close(got, torch.nn.functional.layer_norm(x, shape[1:], w, b), atol=1e-5, rtol=1e-5)
    assert len(compute.program.kernels) == 1


def test_residual_and_rms_norm(compute):
    x, r, w = torch.randn(64, 256), torch.randn(64, 256), torch.randn(256)

    def fn(x: UOp, r: UOp, w: UOp) -> tuple[UOp, UOp]:
        h = x + r
        scale = ((h * h).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return h, h * scale * w.reshape((1, 256)).expand((64, 256))

    got = compute(fn, x, r, w, into={0: 0})
    h = x + r
    same(got[0], h)
    close(got[1], h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w, rtol=1e-5)


def test_softmax_of_columns(compute):
    x = torch.randn(12, 30, 40)
    (got,) = compute(lambda x: softmax(x.permute((0, 2, 1))).permute((0, 2, 1)), x)
    close(got, x.softmax(1))


def test_log_softmax_and_loss(compute):
    x, target = torch.randn(40, 300), torch.randint(0, 300, (40,))

    def fn(x: UOp, t: UOp) -> tuple[UOp, UOp]:
        shifted = x - x.max(-1, keepdim=True)
        logs = shifted - shifted.exp().sum(-1, keepdim=True).log()
        at = UOp.arange(300, dtype=dtypes.int64).reshape((1, 300)).expand((40, 300))
        hit = at.eq(t.reshape((40, 1)).expand((40, 300)))
        return logs, hit.where(logs, 0.0).sum() * (-1 / 40)

    got = compute(fn, x, target)
    close(got[0], x.log_softmax(-1), atol=1e-5)
    close(got[1], torch.nn.functional.cross_entropy(x, target), atol=1e-5)


def test_batch_norm_statistics(compute):
    x = torch.randn(16, 12, 36)

    def fn(x: UOp) -> tuple[UOp, UOp]:
        mean = x.mean((0, 2), keepdim=True)
        d = x - mean
        var = (d * d).mean((0, 2), keepdim=True)
        return d * (var + 1e-5).rsqrt(), mean

    got = compute(fn, x)
    close(got[0], torch.nn.functional.batch_norm(x, None, None, training=True), atol=1e-5)
    close(got[1], x.mean((0, 2), keepdim=True), atol=1e-6)


def test_a_sum_that_all_elements_need_is_made_once(compute):
    x = torch.randn(200, 30)
    total = lambda x: x.sum().reshape((1, 1)).expand((200, 30))  # noqa: E731
    (got,) = compute(lambda x: x / total(x.exp()), x)
    close(got, x / x.exp().sum())
    assert len(compute.program.kernels) > 1


# --- in place ---


def test_in_place(compute):
    x, y = torch.randn(1000), torch.randn(1000)
    (got,) = compute(lambda x, y: x * 0.5 + y, x, y, into={0: 0})
    same(got, x * 0.5 + y)
    assert not compute.program.copies and not compute.program.temporaries


HAZARDS: dict[str, tuple[Callable[..., object], Callable[..., torch.Tensor]]] = {
    "transpose": (lambda x: x.permute((1, 0)) + 0.0, lambda x: x.t() + 0.0),
    "flip": (lambda x: x.flip((0,)) + 0.0, lambda x: x.flip(0) + 0.0),
    "minus_sum": (
        lambda x: x - x.sum().reshape((1, 1)).expand((64, 64)),
        lambda x: x - x.sum(),
    ),
    "minus_row_sum": (lambda x: x - x.sum(1, keepdim=True), lambda x: x - x.sum(1, keepdim=True)),
    "minus_column_sum": (
        lambda x: x - x.sum(0, keepdim=True),
        lambda x: x - x.sum(0, keepdim=True),
    ),
    "softmax": (softmax, lambda x: x.softmax(-1)),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_in_place_hazards(compute, name):
    ours, theirs = HAZARDS[name]
    x = torch.randn(64, 64)
    (got,) = compute(ours, x, into={0: 0})
    close(got, theirs(x), atol=2e-4)


def test_swap(compute):
    x, y = torch.randn(100), torch.randn(100)
    got = compute(lambda x, y: (y * 1.0, x * 1.0), x, y, into={0: 0, 1: 1})
    same(got[0], y)
    same(got[1], x)


# --- many tensors ---


def adam(p: UOp, g: UOp, m: UOp, v: UOp, lr: UOp) -> tuple[UOp, UOp, UOp]:
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - lr.cast(F32).expand(p.shape) * m / (v.sqrt() + 1e-8), m, v


@pytest.mark.parametrize("sizes", [(512,) * 6, (64, 512, 64, 9, 512)])
def test_updates_of_many_tensors_are_few_launches(compute, sizes):
    state = [torch.rand(n) for n in sizes for _ in range(4)]
    rate = torch.tensor(0.01, dtype=torch.float64)

    def fn(*uops: UOp) -> tuple[UOp, ...]:
        return tuple(x for i in range(len(sizes)) for x in adam(*uops[4 * i : 4 * i + 4], uops[-1]))

    into = {3 * i + k: 4 * i + at for i in range(len(sizes)) for k, at in enumerate((0, 2, 3))}
    got = compute(fn, *state, rate, into=into)
    assert len(compute.program.kernels) == len(set(sizes))
    assert not compute.program.copies
    for i in range(len(sizes)):
        p, g, m, v = state[4 * i : 4 * i + 4]
        m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        for a, b in zip(got[3 * i :], (p - 0.01 * m / (v.sqrt() + 1e-8), m, v), strict=False):
            close(a, b)


# --- the source ---


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiles(arch):
    x = buffer_param(0, F32, 4096 * 1024).reshape((4096, 1024))
    h = buffer_param(1, dtypes.float16, 4096 * 1024)
    outputs = {2: softmax(x).reshape((4096 * 1024,)), 3: x.sum(0), 1: h * 2.0}
    typed = [(F32, 4096 * 1024), (dtypes.float16, 4096 * 1024), (F32, 4096 * 1024), (F32, 1024)]
    program = cuda.generate(typed, outputs)
    assert cuda_compile.compile(program.source, arch)[:4] == b"\x7fELF"


@needs_nvrtc
def test_compiler_errors_are_told():
    with pytest.raises(RuntimeError, match="nonsense"):
        cuda_compile.compile("nonsense", "sm_90")


def test_wide_loads():
    x = buffer_param(0, F32, 1024)
    program = cuda.generate([(F32, 1024), (F32, 1024)], {1: x * 2.0})
    assert "tt_wide<float, 4>" in program.kernels[0].source
    program = cuda.generate([(F32, 1023), (F32, 1023)], {1: buffer_param(0, F32, 1023) * 2.0})
    assert "tt_wide" not in program.kernels[0].source


def test_a_row_is_read_once():
    x = buffer_param(0, F32, 64 * 1024).reshape((64, 1024))
    program = cuda.generate([(F32, 64 * 1024)] * 2, {1: softmax(x).reshape((64 * 1024,))})
    assert program.kernels[0].source.count("&q1[") == 1
