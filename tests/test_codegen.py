"""UOps to C: what the compiled kernels compute is what PyTorch computes on the CPU."""

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import compiled_program
import numpy as np
import pytest
import torch

from torch_tiny.engine import codegen
from torch_tiny.uops import AddrSpace, AxisType, Ops, UOp, buffer_param, call, dtypes, sink_of
from torch_tiny.uops.reductions import loops_apart

DTYPES = {
    torch.bool: dtypes.bool,
    torch.uint8: dtypes.uint8,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
}
FROM_UOP = {v: k for k, v in DTYPES.items()}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def compute():
    """compute(fn, *tensors): runs fn over UOps; `into` names inputs that results overwrite."""

    def go(
        fn: Callable[..., UOp | tuple[UOp, ...]],
        *tensors: torch.Tensor,
        into: Mapping[int, int] | None = None,
        variant: str = "fused",
    ) -> tuple[torch.Tensor, ...]:
        memory = [t.contiguous().clone() for t in tensors]
        shaped = [
            buffer_param(i, DTYPES[t.dtype], t.numel()).reshape(tuple(t.shape))
            for i, t in enumerate(tensors)
        ]
        results = fn(*shaped)
        results = results if isinstance(results, tuple) else (results,)
        places = []
        for k, value in enumerate(results):
            if into and k in into:
                places.append(into[k])
            else:
                places.append(len(memory))
                memory.append(torch.empty(value.shape, dtype=FROM_UOP[value.dtype]))
        flat = {i: v.reshape(math.prod(v.shape)) for i, v in zip(places, results, strict=True)}
        program = codegen.generate([(DTYPES[t.dtype], t.numel()) for t in memory], flat, variant)
        library = compiled_program.loaded(program.source)
        compiled_program.run(program, library, [as_bytes(t) for t in memory])
        go.program, go.library = program, library  # type: ignore[attr-defined]
        return tuple(memory[i] for i in places)

    return go


def as_bytes(t: torch.Tensor) -> np.ndarray:
    size = t.numel() * t.element_size()
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(t.data_ptr()))


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Bit for bit, but for the kind of NaN."""
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if want.dtype.is_floating_point:
        number = ~want.isnan()
        assert torch.equal(got.signbit()[number], want.signbit()[number])


ODD = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 88.7, 89.0, -87.3, -103.0,
     -110.0, 1e10, -1e10, 3e38, -3e38, 0.5, 1e-8, 2.0, 100.0, 5.5, -2.5]
)  # fmt: skip


# --- elementwise ---

ARITHMETIC: dict[str, Callable[..., object]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "self_sub": lambda x, _: x - x,
    "self_div": lambda x, _: x / x,
    "zero_mul": lambda x, _: x * 0.0,
    "plus_zero": lambda x, _: x + 0.0,
    "cancel": lambda x, y: (x + y) - y,
    "cancel_mul": lambda x, y: (x * y) / y,
    "div_const": lambda x, _: x / 3.0,
    "recip": lambda x, y: 1.0 / (x * y),
    "chain": lambda x, y: ((x * 0.1) * 0.3 + y) * 7.0 - 0.7 * x,
    "minus_sum": lambda x, y: -(x + y),
    "sigmoid_like": lambda x, _: x * (1.0 / (1.0 + x)),
    "twice": lambda x, _: x * 2.0 + x * 3.0,
    "square_recip": lambda x, _: 1.0 / (x * x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_is_bit_equal(compute, dtype):
    x, y = (
        ODD.to(dtype)[i.flatten()]
        for i in torch.meshgrid(*[torch.arange(len(ODD))] * 2, indexing="ij")
    )
    got = compute(lambda a, b: tuple(f(a, b) for f in ARITHMETIC.values()), x, y)
    for name, value in zip(ARITHMETIC, got, strict=True):
        try:
            same(value, ARITHMETIC[name](x, y))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


SAME_NAMES = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "erf", "erfc", "exp", "exp2"),
    *("expm1", "log", "log10", "log1p", "log2", "sin", "tan", "tanh", "sqrt", "trunc", "floor"),
    *("ceil", "neg", "reciprocal", "lgamma"),
)
UNARY = {n: getattr(torch, n) for n in SAME_NAMES} | {"rint": torch.round, "fabs": torch.abs}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(compute, dtype):
    x = torch.cat([ODD.double(), torch.randn(1000).double() * 4]).to(dtype)
    got = compute(lambda a: tuple(call(name, a) for name in UNARY), x)
    for value, function in zip(got, UNARY.values(), strict=True):
        close(value, function(x), *((2e-6, 1e-6) if dtype == torch.float32 else (1e-13, 1e-13)))
        zero = function(x) == 0
        assert torch.equal(value[zero].signbit(), function(x)[zero].signbit())


def test_binary_functions(compute):
    x, y = (ODD[i.flatten()] for i in torch.meshgrid(*[torch.arange(len(ODD))] * 2, indexing="ij"))
    names = ["maximum", "minimum", "fmax", "fmin", "atan2", "copysign", "pow", "hypot"]
    got = compute(lambda a, b: tuple(call(n, a, b) for n in names), x, y)
    for value, name in zip(got, names, strict=True):
        close(value, getattr(torch, name)(x, y), 3e-6, 1e-30)
    a, b = torch.randn(300) * 9, torch.randn(300)
    (got,) = compute(lambda a, b: call("fmod", a, b), a, b)
    same(got, torch.fmod(a, b))
    (got,) = compute(lambda a: call("pow", a, 2.5), x)
    close(got, x**2.5, 1e-5, 1e-30)
    (got,) = compute(lambda a, b: a.maximum(b), x, y)
    same(got, torch.where(x.isnan(), x, torch.where(y.isnan(), y, torch.where(x < y, y, x))))


def test_exp_and_log_are_not_rounded_twice(compute):
    x = torch.tensor([80.0, -80.0, 20.3, 1e-3, 88.0])
    got = compute(lambda a: (a.exp(), a.log()), x)
    close(got[0], x.exp(), 3e-7, 0.0)
    close(got[1], x.log(), 3e-7, 0.0)


def test_branches_and_comparisons(compute):
    x = torch.cat([ODD, torch.randn(40)])
    got = compute(
        lambda a: (
            (a < 0).where(a.exp(), a),
            a.ne(a),
            (a > 0.0).where(a, 0.0),
            a.cast(dtypes.bool),
        ),
        x,
    )
    close(got[0], torch.where(x < 0, x.exp(), x))
    same(got[1], x.isnan())
    same(got[2], torch.where(x > 0, x, torch.zeros(())))
    same(got[3], x.bool())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integers_wrap(compute, dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, high, 1, 0, 7, high - 1], dtype=dtype)
    y = torch.tensor([1, 1, high, low, 3, 5], dtype=dtype)
    got = compute(lambda a, b: (a + b, a - b, a * b, -a, a & b, a | b, a ^ b, a.maximum(b)), x, y)
    want = (x + y, x - y, x * y, -x, x & y, x | y, x ^ y, torch.maximum(x, y))
    for g, w in zip(got, want, strict=True):
        same(g, w)
    # What follows in the same kernel gets the result that has wrapped, not C's int.
    got = compute(lambda a, b: ((a + b).cast(dtypes.float32), (a * b) < b, (a - b) >> 1), x, y)
    for g, w in zip(got, ((x + y).float(), (x * y) < y, (x - y) >> 1), strict=True):
        same(g, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(compute, dtype):
    x = torch.cat([ODD, torch.randn(500) * 3, torch.tensor([65504.0, 65520.0, 6e-8, 1e-7])]).to(
        dtype
    )
    y = x.flip(0)
    got = compute(
        lambda a, b: (a + b, a * b, call("exp", a), a.cast(dtypes.float32), a.maximum(b), a < b),
        x,
        y,
    )
    same(got[0], x + y)
    same(got[1], x * y)
    close(got[2], x.exp(), torch.finfo(dtype).eps, 1e-7)
    same(got[3], x.float())
    same(got[4], torch.maximum(x, y))
    same(got[5], x < y)
    wide = torch.cat([ODD, torch.randn(500) * 1e-5, torch.randn(500) * 1e4])
    got = compute(lambda a: a.cast(DTYPES[dtype]), wide)
    same(got[0], wide.to(dtype))
    rows = torch.randn(6, 1000).to(dtype)
    got = compute(lambda a: (a.sum(1), a.max(1)), rows)
    close(got[0], rows.sum(1), torch.finfo(dtype).eps, 1e-2)
    same(got[1], rows.amax(1))


def test_conversions(compute):
    x = torch.tensor([0.0, 1.9, -1.9, 100.7, -100.2, 3.0])
    kinds = [torch.int8, torch.int16, torch.int32, torch.int64, torch.float64, torch.bool]
    got = compute(lambda a: tuple(a.cast(DTYPES[k]) for k in kinds), x)
    for value, kind in zip(got, kinds, strict=True):
        same(value, x.to(kind))


# --- movement and reductions ---

SHAPES = [(4, 6), (3, 5, 7), (1, 9), (64, 48), (33, 1000), (257, 3), (16, 8, 64), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_over_every_axis(compute, shape):
    x = torch.randn(shape)
    axes = [
        c for n in range(1, len(shape) + 1) for c in itertools.combinations(range(len(shape)), n)
    ]
    got = compute(lambda a: tuple(f for c in axes for f in (a.sum(c), a.max(c))), x)
    for k, axis in enumerate(axes):
        close(got[2 * k], x.sum(axis), 1e-5, 1e-4)
        same(got[2 * k + 1], x.amax(axis))


def test_maximum_propagates_nan(compute):
    x = torch.randn(8, 100)
    x[1, 5], x[2, 99], x[3, 0], x[4] = math.nan, -math.nan, math.inf, -math.inf
    x[6] = -0.0
    got = compute(lambda a: (a.max(1), a.min(1), a.max(0)), x)
    close(got[0], x.amax(1), 0, 0)
    close(got[1], x.amin(1), 0, 0)
    close(got[2], x.amax(0), 0, 0)


@pytest.mark.parametrize(
    "shape", [(20000, 3), (9000, 64), (8192, 520), (300000,), (7, 70001)], ids=str
)
def test_long_reductions(compute, shape):
    x = torch.rand(shape)
    got = compute(lambda a: (a.sum(), a.sum(0), (a * a).mean(), a.max(0)), x)
    exact = x.double()
    close(got[0].double(), exact.sum(), 2e-6, 0)
    close(got[1].double(), exact.sum(0), 4e-6, 1e-5)
    close(got[2].double(), (exact * exact).mean(), 4e-6, 0)
    same(got[3], x.amax(0))


@pytest.mark.parametrize("variant", codegen.VARIANTS)
def test_reductions_of_reductions(compute, variant):
    a, b, c = torch.randn(5, 5, 5), torch.randn(5, 5, 16), torch.randn(5, 16)
    x = torch.randn(6, 7, 32)

    def program(a: UOp, b: UOp, c: UOp, x: UOp) -> tuple[UOp, ...]:
        products = (a.reshape(5, 5, 5, 1) * b.reshape(5, 1, 5, 16)).sum(2)
        centered = x - x.mean((0, 1), keepdim=True)
        return c + products.sum(0), x.exp().sum(1).log().sum(0), (centered * centered).sum((0, 1))

    got = compute(program, a, b, c, x, variant=variant)
    close(got[0], torch.addbmm(c, a, b), 1e-5, 1e-5)
    close(got[1], x.exp().sum(1).log().sum(0), 1e-5, 1e-5)
    close(got[2], ((x - x.mean((0, 1), keepdim=True)) ** 2).sum((0, 1)), 1e-5, 1e-5)


def test_constants_copies_and_nothing(compute):
    x = torch.randn(7, 9)
    got = compute(
        lambda a: (
            UOp.const(2.5, dtypes.float32).reshape(1).expand(5),
            UOp.arange(6).cast(dtypes.int64),
            a,
            a.ne(a).cast(dtypes.uint8),
            a.sum().reshape(1, 1).expand(3, 2),
        ),
        x,
    )
    same(got[0], torch.full((5,), 2.5))
    same(got[1], torch.arange(6))
    same(got[2], x)
    same(got[3], torch.zeros(7, 9, dtype=torch.uint8))
    close(got[4], x.sum().expand(3, 2).contiguous(), 1e-5, 1e-5)
    program = codegen.generate([(dtypes.float32, 3)], {})
    assert not program.kernels


def test_movement(compute):
    x = torch.randn(64, 96)
    got = compute(
        lambda a: (
            a.permute(1, 0),
            a.permute(1, 0) + a.reshape(96, 64),
            a.flip(1),
            a.shrink(((3, 60), (5, 9))),
            a.pad(((1, 2), (0, 3))),
            a.reshape(8, 8, 96).permute(2, 0, 1),
            a.reshape(64, 1, 96).expand(64, 3, 96),
        ),
        x,
    )
    same(got[0], x.t().contiguous())
    same(got[1], x.t() + x.reshape(96, 64))
    same(got[2], x.flip(1))
    same(got[3], x[3:60, 5:9].contiguous())
    same(got[4], torch.nn.functional.pad(x, (0, 3, 1, 2)))
    same(got[5], x.reshape(8, 8, 96).permute(2, 0, 1).contiguous())
    same(got[6], x.reshape(64, 1, 96).expand(64, 3, 96).contiguous())


def test_gather(compute):
    x, index = torch.randn(50, 20), torch.randint(0, 50, (33,))

    def take(a: UOp, i: UOp) -> UOp:
        rows = UOp.arange(50).reshape(1, 50, 1).cast(dtypes.int64)
        return rows.eq(i.reshape(33, 1, 1)).where(a.reshape(1, 50, 20), 0.0).sum(1)

    (got,) = compute(take, x, index)
    same(got, x[index])
    assert "for" in compute.program.source
    assert compute.program.kernels[0].work < 50 * 20 * 33


# --- fusion ---


def layer_norm(x: UOp, w: UOp, b: UOp) -> tuple[UOp, ...]:
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    scale = ((centered * centered).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return centered * scale * w + b, mean, scale


def cross_entropy(x: UOp, target: UOp) -> UOp:
    logs = x - x.max(-1, keepdim=True)
    logs = logs - logs.exp().sum(-1, keepdim=True).log()
    classes = UOp.arange(x.shape[1]).reshape(1, -1).cast(dtypes.int64)
    return -classes.eq(target.reshape(-1, 1)).where(logs, 0.0).sum(-1).mean()


ROWS = [(4, 3, 4), (64, 1024), (7, 1023), (2, 9, 33), (100, 1), (16, 20000)]


@pytest.mark.parametrize("variant", codegen.VARIANTS)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_row_fusion(compute, shape, variant):
    x = torch.randn(shape) * 3
    w, b, residual = torch.randn(shape[-1]), torch.randn(shape[-1]), torch.randn(shape)

    def program(x: UOp, w: UOp, b: UOp, r: UOp) -> tuple[UOp, ...]:
        hidden = x + r
        rms = hidden * ((hidden * hidden).mean(-1, keepdim=True) + 1e-6).rsqrt() * w
        return x.softmax(-1), *layer_norm(x, w, b), hidden, rms, x.log_softmax(-1)

    got = compute(program, x, w, b, residual, variant=variant)
    close(got[0], x.softmax(-1))
    for g, want in zip(got[1:4], torch.native_layer_norm(x, [shape[-1]], w, b, 1e-5), strict=True):
        close(g, want, 1e-4, 1e-4)
    same(got[4], x + residual)
    close(got[5], torch.nn.functional.rms_norm(x + residual, [shape[-1]], w, 1e-6), 1e-5, 1e-5)
    close(got[6], x.log_softmax(-1), 1e-5, 1e-5)


@pytest.mark.parametrize("variant", codegen.VARIANTS)
def test_softmax_alone_is_one_kernel(compute, variant):
    x = torch.randn(64, 1024) * 10
    x[3, 5], x[4], x[5, 7] = math.inf, -math.inf, math.nan
    (got,) = compute(lambda a: a.softmax(-1), x, variant=variant)
    close(got, x.softmax(-1))
    assert (len(compute.program.kernels) == 1) == (variant != "separate")


def test_layer_norm_is_one_kernel(compute):
    compute(layer_norm, torch.randn(64, 256), torch.randn(256), torch.randn(256))
    assert len(compute.program.kernels) == 1
    assert compute.program.kernels[0].parallel == 64


@pytest.mark.parametrize("variant", codegen.VARIANTS)
def test_cross_entropy(compute, variant):
    x, target = torch.randn(40, 500), torch.randint(0, 500, (40,))
    (got,) = compute(cross_entropy, x, target, variant=variant)
    close(got, torch.nn.functional.cross_entropy(x, target), 1e-5, 1e-5)


@pytest.mark.parametrize("variant", codegen.VARIANTS)
def test_square_matrix_is_not_confused(compute, variant):
    x = torch.rand(64, 64)
    got = compute(
        lambda a: (a.sum(0), a.sum(1), a - a.sum(0, keepdim=True), a - a.sum(1, keepdim=True),
                   a.softmax(0), a.permute(1, 0).softmax(1), a / a.sum(0).reshape(64, 1)),
        x, variant=variant,
    )  # fmt: skip
    want = (x.sum(0), x.sum(1), x - x.sum(0, True), x - x.sum(1, True), x.softmax(0),
            x.t().softmax(1), x / x.sum(0).reshape(64, 1))  # fmt: skip
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-4, 1e-5)


@pytest.mark.parametrize("variant", codegen.VARIANTS)
def test_backward_of_layer_norm(compute, variant):
    x, w, g = torch.randn(96, 160), torch.randn(160), torch.randn(96, 160)
    b = torch.zeros(160)
    _, mean, scale = torch.native_layer_norm(x, [160], w, b, 1e-5)

    def backward(g: UOp, x: UOp, mean: UOp, scale: UOp, w: UOp) -> tuple[UOp, ...]:
        hat = (x - mean) * scale
        gw = g * w
        dx = scale * (gw - gw.mean(-1, keepdim=True) - hat * (gw * hat).mean(-1, keepdim=True))
        return dx, (g * hat).sum(0), g.sum(0)

    got = compute(backward, g, x, mean, scale, w, variant=variant)
    want = torch.ops.aten.native_layer_norm_backward(
        g, x, [160], mean, scale, w, b, [True, True, True]
    )
    for a, c in zip(got, want, strict=True):
        close(a, c, 1e-4, 1e-4)


# --- in place ---


def adam(p: UOp, g: UOp, m: UOp, v: UOp, rate: UOp) -> tuple[UOp, ...]:
    m = m + (g - m) * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - rate.cast(dtypes.float32) * (m / (v.sqrt() + 1e-8)), m, v


def test_adam_is_one_kernel_in_place(compute):
    p, g, m, v = (torch.randn(40, 30) for _ in range(4))
    v, rate = v.abs(), torch.tensor(0.01, dtype=torch.float64)
    got = compute(adam, p, g, m, v, rate, into={0: 0, 1: 2, 2: 3})
    m2 = m + (g - m) * 0.1
    v2 = v * 0.999 + g * g * 0.001
    same(got[1], m2)
    same(got[2], v2)
    close(got[0], p - rate.float() * (m2 / (v2.sqrt() + 1e-8)))
    assert len(compute.program.kernels) == 1
    assert not compute.program.copies and not compute.program.temporaries


HAZARDS: dict[str, Callable[..., object]] = {
    "flip": lambda a, b: (a.flip(0), b + a),
    "swap": lambda a, b: (b, a),
    "transposed": lambda a, b: (a + a.permute(1, 0), b),
    "row_sum": lambda a, b: (a - a.sum(1).reshape(32, 1), b + a),
    "column_sum": lambda a, b: (a - a.sum(0), b * a),
    "shifted": lambda a, b: (a.reshape(-1).flip(0).reshape(32, 32) + b, a.flip(1)),
    "total": lambda a, b: (a / a.sum(), b / a.sum()),
    "chain": lambda a, b: (a + 1.0, (a + 1.0) * b),
}


@pytest.mark.parametrize("variant", codegen.VARIANTS)
@pytest.mark.parametrize("name", HAZARDS)
def test_in_place_hazards(compute, name, variant):
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    got = compute(HAZARDS[name], a, b, into={0: 0, 1: 1}, variant=variant)
    for g, w in zip(got, HAZARDS[name](a, b), strict=True):
        close(g, w.contiguous(), 1e-4, 1e-5)


def test_parts_of_a_kernel_can_run_apart(compute):
    """begin and end cut a kernel: running it in pieces, in any order, gives the same."""
    x = torch.randn(64, 256)
    (want,) = compute(lambda a: a.softmax(-1), x)
    program = compute.program
    library = compute.library
    out = torch.zeros(64, 256)
    (kernel,) = program.kernels
    pointers = [(x, out)[b].data_ptr() for b in kernel.buffers]
    table = (ctypes.c_void_p * len(pointers))(*pointers)
    for begin, end in ((40, 64), (0, 7), (7, 40)):
        getattr(library, kernel.name)(table, ctypes.c_int64(begin), ctypes.c_int64(end))
    assert torch.equal(out, want)


def random_program(seed: int) -> tuple[Sequence[torch.Tensor], Callable[..., object]]:
    """A random mix of operators that UOps and tensors have in common."""
    random = np.random.default_rng(seed)
    rows, columns = (int(random.choice(s)) for s in ([1, 3, 16, 40], [1, 5, 32, 130]))

    def fn(a: object, b: object, c: object) -> object:
        choose = np.random.default_rng(seed + 1)
        values = [a, b, c]
        for _ in range(int(choose.integers(3, 12))):
            x, y = (values[int(choose.integers(len(values)))] for _ in range(2))
            kind = int(choose.integers(9))
            if kind == 0:
                z = x + y
            elif kind == 1:
                z = x * y
            elif kind == 2:
                z = x - y.sum(1).reshape(rows, 1) * 0.1
            elif kind == 3:
                z = x + y.sum(0).reshape(1, columns) * 0.1
            elif kind == 4:
                z = (x * 0.1).exp() - y
            elif kind == 5:
                z = x.reshape(columns, rows).permute(1, 0) + y
            elif kind == 6:
                z = x / ((y * y).sum(1).reshape(rows, 1) + 1.0)
            elif kind == 7:
                z = x.softmax(1) + y
            else:
                z = x.flip((0,)) - y
            values.append(z * 0.5)
        return tuple(values[-3:])

    return [torch.randn(rows, columns) for _ in range(3)], fn


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(compute, seed):
    tensors, fn = random_program(seed)
    got = compute(fn, *tensors, into={0: 0, 1: 2}, variant=codegen.VARIANTS[seed % 3])
    for g, w in zip(got, fn(*tensors), strict=True):
        close(g, w.contiguous(), 1e-4, 1e-4)


def test_values_used_at_several_places_are_not_written_out_again_and_again() -> None:
    """Each step reads the one before at two places, and so on: twice as much with every step."""

    def size(steps: int) -> int:
        value = buffer_param(0, dtypes.float32, 64)
        for _ in range(steps):
            value = value + value.flip((0,)) * 3.0 + value.shrink(((1, 64),)).pad(((0, 1),))
        program = codegen.generate([(dtypes.float32, 64)] * 2, {1: value})
        return len(program.source)

    assert size(24) < 2.5 * size(12)


def test_a_load_at_an_index_has_no_condition() -> None:
    """gcc leaves one that has alone, and the loop around it: an embedding took 14 times as long."""
    table, index = buffer_param(0, dtypes.float32, 640), buffer_param(1, dtypes.int64, 30)
    rows = table.reshape((10, 64)).gather(0, index.reshape((30, 1)).expand((30, 64)))
    program = codegen.generate(
        [(dtypes.float32, 640), (dtypes.int64, 30), (dtypes.float32, 1920)],
        {2: call("exp", rows).reshape((-1,))},
    )
    assert "p0[" in program.source
    assert "? p0[" not in program.source


def test_a_sum_of_sums_over_one_loop() -> None:
    """The sum outside stays as it is where the one inside of the rows gets a loop of its own."""
    x, y = (buffer_param(slot, dtypes.float32, 12) for slot in range(2))
    row, place = (UOp.range(12, number, AxisType.WEAK) for number in range(2))
    slots = itertools.count()

    def summed(value: UOp) -> UOp:
        memory = UOp.placeholder((), dtypes.float32, next(slots), AddrSpace.REG)
        running = memory.after(place)
        return memory.after(running.store(running + value).end(place))

    outside = summed(x.index(place))
    inside = summed(x.index(place) * outside + x.index(row))
    nodes = loops_apart(sink_of(y.index(row).store(inside).end(row))).toposort()
    ends = [u for u in nodes if u.op is Ops.END]
    assert len(ends) == 3 and len({loop for end in ends for loop in end.src[1:]}) == 3
    assert [u for u in nodes if u.op is Ops.STORE and u in outside.toposort()]
