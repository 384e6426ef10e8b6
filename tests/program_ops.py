"""The statements random programs are made of: one small function per kind of statement.

A statement is a line of Python over `torch`, `device`, `seeded` and the live tensors. The
generator looks at the CPU's tensors to choose arguments that mostly work, and sometimes not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
DTYPES = ("float32", "float64", "int64", "bool", "complex64", "bfloat16")
MAX_ELEMENTS = 64


class Retry(Exception):
    """No tensor alive suits this kind of statement; choose another."""


class Gen:
    """Writes one statement after another; `env` holds the CPU's tensors by name.

    `portable` leaves out what only equal kernels make equal: random numbers of the device,
    the bits of floats, errors that on CUDA would end the context.
    """

    def __init__(
        self, rng: random.Random, env: dict[str, Any], autograd: bool, portable: bool
    ) -> None:
        self.rng, self.env, self.autograd, self.portable = rng, env, autograd, portable
        self.count = 0

    def statement(self) -> str:
        names = self.names()
        if len(names) < 2:
            return create(self)
        if len(names) > 10:
            return f"del {self.rng.choice(names)}"
        while True:
            kind = self.rng.choices(_KINDS, _WEIGHTS)[0]
            try:
                return kind(self)
            except Retry:
                pass

    def names(self) -> list[str]:
        return [n for n, v in self.env.items() if n.startswith("t") and isinstance(v, Tensor)]

    def tensor(self, want: Callable[[Tensor], bool] = lambda t: True) -> tuple[str, Tensor]:
        try:
            found = [n for n in self.names() if want(self.env[n])]
        except RuntimeError:  # autograd will not say where a view of several came from
            raise Retry from None
        if not found:
            raise Retry
        name = self.rng.choice(found)
        return name, self.env[name]

    def new(self, expr: str, outputs: int = 1) -> str:
        names = [f"t{self.count + i}" for i in range(outputs)]
        self.count += outputs
        return f"{', '.join(names)} = {expr}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def shape(self, least: int = 0) -> tuple[int, ...]:
        dims = self.rng.randint(least, 3)
        return tuple(self.rng.choice((1, 2, 3, 4, 2, 3, 0 if self.chance(0.1) else 5))
                     for _ in range(dims))

    def dim(self, t: Tensor) -> int:
        if t.dim() == 0:
            raise Retry
        return self.rng.randint(-t.dim(), t.dim() - 1)

    def number(self, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.rng.choice(("True", "False"))
        if dtype.is_complex and self.chance(0.5):
            return self.rng.choice(("1j", "(2-1j)", "0.5"))
        if dtype.is_floating_point or dtype.is_complex:
            return self.rng.choice(("0.5", "2", "-1.25", "0", "1", "3.0"))
        return self.rng.choice(("0", "1", "2", "-3", "7"))

    def target(self, plain: bool = True) -> tuple[str, Tensor]:
        """A tensor to write to; `plain`: the result must not depend on the order of writes."""
        name, t = self.tensor(lambda t: not (t.requires_grad and t.is_leaf) or self.chance(0.1))
        if plain and overlaps_itself(t) and not self.chance(0.1 if 0 in t.stride() else 0):
            raise Retry
        return name, t

    def source(self, dst: Tensor, want: Callable[[Tensor], bool] = lambda t: True) -> str:
        """An expression that broadcasts to `dst`, cast to it, and reads nothing it overlaps."""

        def fits(s: Tensor) -> bool:
            return broadcasts(s.shape, dst.shape) and castable(s.dtype, dst.dtype) and want(s)

        name, s = self.tensor(fits)
        if shares_storage(s, dst) and not (same_place(s, dst) or self.chance(0.05)
                                           and s.is_contiguous() and dst.is_contiguous()):
            return f"{name}.clone()"
        return name


Maker = Callable[[Gen], str]
_KINDS: list[Maker] = []
_WEIGHTS: list[int] = []


def kind(weight: int) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        _KINDS.append(maker)
        _WEIGHTS.append(weight)
        return maker

    return add


# ---- creation ---------------------------------------------------------------------------


@kind(8)
def create(g: Gen) -> str:
    dtype = g.rng.choice(DTYPES)
    shape = g.shape()
    tail = f"dtype=torch.{dtype}, device=device"
    value = g.number(getattr(torch, dtype))
    seed = g.rng.randint(0, 99)
    ways = [
        f"torch.empty({shape}, {tail}).fill_({value})",
        f"torch.zeros({shape}, {tail})",
        f"torch.full({shape}, {value}, {tail})",
        f"torch.ones({shape}, {tail})",
        f"torch.eye({g.rng.randint(1, 4)}, {tail})",
        f"torch.tensor([{value}, {value}], {tail})",
        f"torch.empty_strided((2, 3), (1, 2), {tail}).fill_({value})",
    ]
    if dtype not in ("bool", "complex64"):
        ways += [f"torch.arange({g.rng.randint(1, 12)}, {tail})"]
    ways += [f"seeded({seed}, {shape}, torch.{dtype}).to(device)"] * 8
    expr = g.rng.choice(ways)
    if g.autograd and g.chance(0.6) and dtype not in ("int64", "bool"):
        expr += ".requires_grad_()"
    return g.new(expr)


@kind(2)
def create_like(g: Gen) -> str:
    x, t = g.tensor()
    value = g.number(t.dtype)
    return g.new(g.rng.choice((
        f"torch.zeros_like({x})", f"torch.full_like({x}, {value})", f"{x}.new_ones({g.shape()})",
        f"torch.empty_like({x}).copy_({x})", f"{x}.new_tensor([1, 0, 1])",
    )))


@kind(2)
def create_then_change_the_source(g: Gen) -> str:
    """What was copied from CPU memory must not see a later write to that memory."""
    seed, shape = g.rng.randint(0, 99), g.shape()
    return f"c = seeded({seed}, {shape}, torch.float32); {g.new('c.to(device) + 1')}; c.zero_()"


@kind(3)
def create_random(g: Gen) -> str:
    if g.portable:
        raise Retry
    seed, shape = g.rng.randint(0, 99), g.shape()
    expr = g.rng.choice((
        f"torch.rand({shape}, device=device)", f"torch.randn({shape}, device=device)",
        f"torch.randint(-5, 9, {shape}, device=device)", "torch.randperm(6, device=device)",
        f"torch.empty({shape}, device=device).uniform_(-1, 2)",
        f"torch.full({shape}, 0.3, device=device).bernoulli()",
        f"torch.nn.functional.dropout(torch.ones({shape}, device=device), 0.4)",
    ))
    return f"torch.manual_seed({seed}); {g.new(expr)}; torch.manual_seed(0)"


# ---- views ------------------------------------------------------------------------------


@kind(30)
def view(g: Gen) -> str:
    x, t = g.tensor()
    rng, n = g.rng, t.dim()
    ways = [
        lambda: f"{x}.unsqueeze({rng.randint(-n - 1, n)})",
        lambda: f"{x}.squeeze()",
        lambda: f"{x}.flatten()",
        lambda: f"{x}.reshape({_factors(g, t.numel())})",
        lambda: f"{x}.view({_factors(g, t.numel())})",
        lambda: f"{x}.expand({_expanded(g, t)})",
        lambda: f"{x}.detach()",
        lambda: f"{x}.view_as({x})",
        lambda: f"{x}.conj()",
        lambda: f"{x}.real",
        lambda: _as_strided(g, x, t),
        lambda: _as_strided(g, x, t),
        lambda: _dtype_view(g, x, t),
    ]
    if n:
        d, size = g.dim(t), t.size(g.dim(t))
        ways += [
            lambda: f"{x}[{_slices(g, t)}]",
            lambda: f"{x}[{_slices(g, t)}]",
            lambda: f"{x}[..., {rng.randint(0, max(t.size(-1) - 1, 0))}]",
            lambda: f"{x}.select({d}, {rng.randint(-1, max(t.size(d) - 1, 0))})",
            lambda: f"{x}.narrow({d}, {(a := rng.randint(0, t.size(d)))}, {t.size(d) - a})",
            lambda: f"{x}.transpose({d}, {g.dim(t)})",
            lambda: f"{x}.permute({rng.sample(range(n), n)})",
            lambda: f"{x}.movedim({d}, {g.dim(t)})",
            lambda: f"{x}.unfold({d}, {rng.randint(1, max(t.size(d), 1))}, {rng.randint(1, 3)})",
            lambda: f"{x}.squeeze({d})",
            lambda: f"{x}[None, ..., None]",
            lambda: f"{x}.unbind({d})[0]",
            lambda: f"{x}.split({rng.randint(1, size + 1)}, {d})[-1]",
        ]
        if t.size(d) > 1:
            ways.append(lambda: f"{x}.chunk(2, {d})")
    if n >= 2:
        a, b = rng.sample(range(n), 2)
        ways += [
            lambda: f"{x}.diagonal({rng.randint(-3, 3)}, {a}, {b})",
            lambda: f"{x}.diagonal({rng.randint(-1, 1)}, {a}, {b})",
            lambda: f"{x}.mT",
        ]
    if t.is_complex():
        ways += [lambda: f"torch.view_as_real({x})", lambda: f"{x}.imag"] * 2
    expr = rng.choice(ways)()
    return g.new(expr, 2 if ".chunk(2" in expr else 1)


def _factors(g: Gen, numel: int) -> tuple[int, ...]:
    pairs = [(a, numel // a) for a in range(1, numel + 1) if numel % a == 0] or [(0, 3)]
    a, b = g.rng.choice(pairs)
    return g.rng.choice(((a, b), (b, a), (-1, a) if a else (0,), (a, 1, b), (numel,)))


def _expanded(g: Gen, t: Tensor) -> tuple[int, ...]:
    if t.numel() > MAX_ELEMENTS // 2:
        raise Retry
    lead = tuple(g.rng.randint(1, 3) for _ in range(g.rng.randint(0, 1)))
    kept = tuple(g.rng.choice((-1, 1, 3)) if s == 1 else g.rng.choice((-1, -1, -1, s))
                 for s in t.shape)
    if g.chance(0.03):
        kept = tuple(s + 1 for s in t.shape)
    return lead + kept


def _slices(g: Gen, t: Tensor) -> str:
    parts = []
    for size in t.shape:
        a = g.rng.randint(0, size)
        parts.append(g.rng.choice((
            ":", f"{a}:", f":{a}", "::2", f"{a // 2}:{size}:{g.rng.randint(1, 3)}", "-2:")))
    return ", ".join(parts)


def _as_strided(g: Gen, x: str, t: Tensor) -> str:
    room = t.untyped_storage().nbytes() // t.element_size()
    if room == 0:
        raise Retry
    for _ in range(10):
        dims = g.rng.randint(0, 3)
        size = tuple(g.rng.choice((1, 2, 3)) for _ in range(dims))
        stride = tuple(g.rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(dims))
        span = sum((a - 1) * b for a, b in zip(size, stride, strict=True))
        if span < room:
            return f"{x}.as_strided({size}, {stride}, {g.rng.randint(0, room - 1 - span)})"
    if g.chance(0.1):
        return f"{x}.as_strided((9,), ({room},), 0)"
    raise Retry


def _dtype_view(g: Gen, x: str, t: Tensor) -> str:
    if t.is_complex():
        return f"{x}.view(torch.float32)"
    if t.dtype == torch.float32 and g.chance(0.5):
        return f"{x}.view(torch.complex64)"
    if g.portable or g.autograd or t.dtype == torch.bool:
        raise Retry
    same = {8: ("int64", "float64"), 4: ("int32", "float32"), 2: ("int16", "bfloat16")}
    return f"{x}.view(torch.{g.rng.choice((*same.get(t.element_size(), ()), 'uint8'))})"


# ---- writes in place --------------------------------------------------------------------


@kind(12)
def write_number(g: Gen) -> str:
    x, t = g.target(plain=False)
    number = g.number(t.dtype)
    if overlaps_itself(t) or g.chance(0.3):
        return g.rng.choice((f"{x}.fill_({number})", f"{x}.zero_()"))
    return g.rng.choice((
        f"{x}.add_({number})", f"{x}.mul_({number})", f"{x} -= {number}", f"{x}.fill_({number})",
        f"{x}[...] = {number}", f"{x}.clamp_(-2, 2)", f"{x}.neg_()", f"{x}.copy_({x}.clone() * 2)",
        f"{x}.mul_(torch.tensor({number}))", f"{x}.relu_()", f"{x}.conj_physical_()",
    ))


@kind(16)
def write_tensor(g: Gen) -> str:
    x, t = g.target()
    y = g.source(t)
    return g.rng.choice((
        f"{x}.add_({y})", f"{x}.mul_({y})", f"{x}.sub_({y})", f"{x}.copy_({y})", f"{x} += {y}",
        f"{x}[...] = {y}", f"{x}.copy_({y})", f"{x}.addcmul_({y}, {y})", f"{x}.copy_({y}.cpu())",
        f"{x}.set_(({x} + {y}).to({x}.dtype))" if not g.autograd else f"{x}.add_({y})",
    ))


@kind(8)
def write_by_mask(g: Gen) -> str:
    x, t = g.target()
    number = g.number(t.dtype)
    mask = g.rng.choice((f"({x} == {x}.clone())", f"({x} != 0)", f"torch.zeros_like({x}, "
                         "dtype=torch.bool)", f"(seeded(3, {tuple(t.shape)}, torch.bool)"
                         ".to(device))"))
    return g.rng.choice((
        f"{x}.masked_fill_({mask}, {number})", f"{x}[{mask}] = {number}",
        f"{x}.masked_fill_({mask}, torch.tensor({number}, device=device, dtype={x}.dtype))",
        f"{x}.masked_scatter_({mask}, {x}.clone())", f"m = {mask}; {x}[m] = {x}[m] * 2; del m",
    ))


@kind(10)
def write_by_index(g: Gen) -> str:
    x, t = g.target()
    if t.dim() == 0 or t.numel() == 0 or t.dtype == torch.bool:
        raise Retry
    d = g.dim(t)
    number, size, seed = g.number(t.dtype), t.size(d), g.rng.randint(0, 99)
    place = g.rng.choice((", device=device", ", device=device", ""))
    rows = g.rng.sample(range(t.size(0)), g.rng.randint(1, t.size(0)))
    at = f"indices({seed}, {tuple(t.shape)}, {size}).to(device)"
    one = f"torch.tensor({g.rng.sample(range(size), g.rng.randint(1, size))}, device=device)"
    return g.rng.choice((
        f"{x}[torch.tensor({rows}{place})] = {number}",
        f"{x}[torch.tensor({rows}{place})] += {number}",
        f"{x}[{rows}] = {x}[{rows}] * 2",
        f"{x}.index_put_((torch.tensor({rows + rows}{place}),), "
        f"{x}[0].clone(), accumulate=True)",
        f"{x}.scatter_({d}, {at}, {number})",
        f"{x}.scatter_add_({d}, {at}, {x}.clone())",
        f"{x}.index_fill_({d}, {one}, {number})",
        f"{x}.index_add_({d}, {one}, {x}.index_select({d}, {one}))",
        f"{x}.index_copy_({d}, {one}, {x}.index_select({d}, {one}) * 2)",
        f"{x}[0], {x}[-1] = {x}[-1].clone(), {x}[0].clone()",
        f"{x}.put_(torch.tensor([0, -1], device=device), {x}.flatten()[:2].clone())"
        if t.numel() > 1 else f"{x}.fill_({number})",
        f"{x}[{', '.join(str(s - 1) for s in t.shape)}] = {number}",
    ))


@kind(2)
def swap(g: Gen) -> str:
    x, t = g.target()
    y, s = g.target()
    if t.shape != s.shape or t.dtype != s.dtype or shares_storage(s, t):
        raise Retry
    return f"c = {x}.clone(); {x}.copy_({y}); {y}.copy_(c); del c"


@kind(3)
def change_storage(g: Gen) -> str:
    if g.autograd:
        raise Retry
    x, t = g.tensor(lambda t: t.untyped_storage().resizable())
    y, s = g.tensor(lambda s: s.dtype == t.dtype)
    number = g.number(t.dtype)
    room = s.untyped_storage().nbytes() // s.element_size()
    return g.rng.choice((
        f"{x}.resize_({g.shape()}).fill_({number})", f"{x}.resize_(2, 7).fill_({number})",
        f"{x}.set_({y})", f"{x}.data = {y}",
        f"{x}.set_({y}.untyped_storage(), {min(1, room)}, ({max(room - 1, 0)},), (1,))",
        f"{x}.set_()" if g.chance(0.2) else f"{x}.resize_as_({y}).fill_({number})",
    ))


@kind(6)
def write_out(g: Gen) -> str:
    """out= of the right size, or of another, which is resized with a warning."""
    x, t = g.target()
    y = g.source(t, lambda s: s.numel() > 0 and (s.shape == t.shape or g.chance(0.2)))
    if t.dtype == torch.bool or not t.untyped_storage().resizable():
        raise Retry  # the CPU leaves a tensor that cannot be resized larger than its storage
    number = g.number(t.dtype)
    return g.rng.choice((
        f"torch.add({y}, {number}, out={x})", f"torch.mul({y}, {y}, out={x})",
        f"torch.cat([{y}.clone(), {y}.clone()], out={x})", f"torch.neg({y}, out={x})",
        f"torch.sum({y}.clone(), 0, dtype={x}.dtype, out={x})",
        f"torch.where({y}.clone() == {y}.clone(), {y}.clone(), {y}.clone(), out={x})",
        f"torch.index_select({y}.to({x}.dtype), 0, torch.tensor([0], device=device), out={x})"
        if t.dim() else f"torch.neg({y}, out={x})",
    ))


@kind(4)
def foreach(g: Gen) -> str:
    x, t = g.target()
    y, s = g.target()
    if shares_storage(t, s):
        raise Retry
    number = g.number(t.dtype)
    if t.dtype == torch.bool or s.dtype == torch.bool:
        raise Retry
    return g.rng.choice((
        f"torch._foreach_add_([{x}, {y}], 1)", f"torch._foreach_mul_([{x}, {y}], {number})",
        g.new(f"torch._foreach_add([{x}, {y}], [{x}, {y}])", 2),
        g.new(f"torch._foreach_abs([{x}, {y}])", 2),
        f"torch._foreach_copy_([{x}], [{y}])" if t.shape == s.shape and t.dtype == s.dtype
        else f"torch._foreach_zero_([{x}, {y}])",
        f"torch._foreach_addcmul_([{x}], [{x}.clone()], [{x}.clone()], [0.5])"
        if t.dtype.is_floating_point else f"torch._foreach_neg_([{x}, {y}])",
    ))


@kind(3)
def write_from_the_host(g: Gen) -> str:
    """Through NumPy's view of the same memory, which both sides see."""
    x, t = g.target()
    if g.portable or t.dtype == torch.bfloat16 or t.is_conj() or t.is_neg():
        raise Retry
    return f"n = {x}.detach().numpy(); {x}.detach().add_(1); n *= 2; {x}.detach().sub_(1); del n"


# ---- computing --------------------------------------------------------------------------


@kind(14)
def unary(g: Gen) -> str:
    x, t = g.tensor()
    clean = f"torch.nan_to_num({x}.clone(), 1, 2, 3).clamp(-9, 9)"
    ways = [f"-{x}", f"{x}.abs()", f"{x}.square()", f"{x}.clone()", f"{x}.contiguous()",
            f"{x}.to(torch.float64)", f"{x}.to(torch.complex64)", f"{x}.isnan()",
            f"{x}.to(torch.bfloat16)", f"{x} * 2", f"1 - {x}", f"{x} != 0", f"{x}.sgn()",
            f"{x}.clone(memory_format=torch.contiguous_format)", f"{x}.flip(0)", f"{x}.tril()",
            f"{x}.sin()", f"{x}.exp()", f"{x}.tanh()", f"{x}.sigmoid()", f"{x} / 3", f"{x} ** 2"]
    if not t.is_complex():
        ways += [f"{clean}.to(torch.int64)", f"{clean}.to(torch.float32)", f"{x} > 0",
                 f"{x}.relu()", f"{x}.floor()", f"torch.where({x} > 0, {x}, 0)"]
    if t.dtype.is_floating_point and t.dim():
        ways += [f"{x}.softmax({g.dim(t)})", f"torch.nn.functional.layer_norm({x}, "
                 f"({t.size(-1)},))", f"torch.nn.functional.gelu({x})", f"{x}.log_softmax(-1)"]
    return g.new(g.rng.choice(ways))


@kind(14)
def binary(g: Gen) -> str:
    x, t = g.tensor()
    y, s = g.tensor(lambda s: fits_together(t, s) or g.chance(0.03))
    ways = [f"{x} + {y}", f"{x} * {y}", f"{x} + {y}", f"{x} * {y}", f"{x} == {y}", f"{x} / {y}",
            f"torch.add({x}, {y}, alpha=2)", f"torch.where({x} != 0, {x}, {y})"]
    if torch.bool not in (t.dtype, s.dtype):
        ways.append(f"{x} - {y}")
    if not (t.is_complex() or s.is_complex()):
        ways += [f"torch.maximum({x}, {y})", f"{x} < {y}", f"{x} >= {y}", f"torch.atan2({x}, {y})"]
        if not g.portable:
            ways += [f"{x} // {y}", f"{x} % {y}"]
    return g.new(g.rng.choice(ways))


@kind(12)
def reduce(g: Gen) -> str:
    x, t = g.tensor()
    keep = g.rng.choice(("", ", keepdim=True"))
    if t.dim() == 0 or g.chance(0.3):
        return g.new(g.rng.choice((f"{x}.sum()", f"{x}.mean()", f"{x}.any()", f"{x}.prod()",
                                   f"{x}.count_nonzero()", f"{x}.norm()")))
    d = g.dim(t)
    ways = [f"{x}.sum({d}{keep})", f"{x}.mean({d}{keep})", f"{x}.all({d}{keep})",
            f"{x}.prod({d}{keep})", f"{x}.cumsum({d})", f"{x}.var({d}{keep})",
            f"{x}.logcumsumexp({d})"]
    if not t.is_complex():
        ways += [f"{x}.amax({d}{keep})", f"{x}.argmin({d}{keep})", f"{x}.logsumexp({d}{keep})"]
        pairs = [f"{x}.sort(dim={d}, stable=True)", f"{x}.max({d}{keep})", f"{x}.cummax({d})"]
        if g.chance(0.4):
            return g.new(g.rng.choice(pairs), 2)
    return g.new(g.rng.choice(ways))


@kind(6)
def multiply(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.dim() > 0 and t.numel() < MAX_ELEMENTS)
    y, s = g.tensor(lambda s: s.dim() > 0 and s.numel() < MAX_ELEMENTS
                    and (s.dtype == t.dtype or g.chance(0.05)))
    if t.size(-1) == s.size(-2 if s.dim() > 1 else -1):
        return g.new(f"{x} @ {y}")
    return g.new(g.rng.choice((f"{x} @ {x}.mT" if t.dim() > 1 else f"{x} @ {x}",
                               f"torch.einsum('i,j->ij', {x}.flatten()[:4], {y}.flatten()[:4])",
                               f"torch.outer({x}.flatten()[:3], {x}.flatten()[:3])")))


@kind(7)
def join(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.numel() <= MAX_ELEMENTS // 2)
    y, s = g.tensor(lambda s: s.dim() == t.dim() and s.shape[1:] == t.shape[1:]
                    and s.numel() <= MAX_ELEMENTS // 2)
    ways = [f"torch.stack([{x}, {x}], {g.rng.randint(0, t.dim())})", f"{x}.repeat(2, *{x}.shape)"
            if t.numel() < 6 else f"{x}.tile(2)", f"torch.atleast_2d({x})"]
    if t.dim():
        ways += [f"torch.cat([{x}, {y}])", f"torch.cat([{x}, {x}.conj()], -1)",
                 f"torch.nn.functional.pad({x}, (1, 0))", f"{x}.roll(1, 0)"]
    if t.dim() in (1, 2):
        ways += [f"torch.diag({x}, {g.rng.randint(-1, 1)})", f"torch.diag_embed({x})"]
    return g.new(g.rng.choice(ways))


@kind(7)
def select(g: Gen) -> str:
    x, t = g.tensor(lambda t: t.dim() > 0 and t.numel() > 0)
    d, seed = g.dim(t), g.rng.randint(0, 99)
    at = f"indices({seed}, {tuple(t.shape)}, {t.size(d)}).to(device)"
    return g.new(g.rng.choice((
        f"{x}.gather({d}, {at})", f"{x}.take({at}.flatten() % {t.numel()})",
        f"{x}.index_select({d}, torch.tensor([0, {t.size(d) - 1}], device=device))",
        f"{x}[torch.tensor([0, -1])]", f"{x}[:, None][[0, 0]]",
        f"{x}[torch.tensor([0], device=device), ..., None]",
    )))


@kind(7)
def data_dependent(g: Gen) -> str:
    x, t = g.tensor()
    ways = [f"{x}.nonzero()", f"{x}[{x} != 0]", f"{x}.masked_select({x} == {x})",
            f"torch.where({x})[0]" if t.dim() else f"{x}.nonzero()"]
    if not t.is_complex():
        ways += [f"torch.unique({x})"]
    return g.new(g.rng.choice(ways))


# ---- reads, errors, autograd ------------------------------------------------------------


@kind(16)
def read(g: Gen) -> str:
    x, t = g.tensor()
    y, _ = g.tensor()
    ways = [f"r = {x}.sum().item()", f"r = {x}.cpu()", f"r = {x}.detach().resolve_conj().tolist()",
            f"r = bool(({x} == {x}).all())", "synchronize()", f"r = torch.equal({x}, {y})",
            f"r = {x}.detach().resolve_conj().cpu().numpy()", f"r = text({x})"]
    if not g.portable:
        ways += [f"r = {x}.detach().resolve_conj().resolve_neg().numpy().copy()"]
    if t.numel() == 1:
        ways += [f"r = {x}.item()", f"r = {x}.detach().item()", f"r = bool({x})"]
    return g.rng.choice(ways)


@kind(5)
def forget(g: Gen) -> str:
    x, _ = g.tensor()
    return f"del {x}"


@kind(3)
def fail(g: Gen) -> str:
    x, t = g.tensor()
    ways = [f"{x}.expand(7, 7, 7, 7)", f"{x}.view(-1, 11)", f"{x} + torch.ones(11, 1, 7, "
            "device=device)[:, :, :6].expand(11, 2, 6)", f"{x}.transpose(0, 9)", f"{x}[9, 9, 9, 9]",
            f"{x} @ torch.ones(13, 13, device=device)", f"torch.cat([{x}[None], "
            f"torch.ones(3, 3, 3, 3, 3, device=device)])", f"{x}.flatten().expand(2, 3).item()"]
    if not g.portable:
        ways += ["torch.linalg.inv(torch.zeros(2, 2, device=device))",
                 "torch.linalg.cholesky(-torch.eye(3, device=device))",
                 "torch.ones(2, dtype=torch.int64, device=device) // 0 + "
                 "torch.ones(2, device=device)",
                 f"{x}.flatten()[torch.tensor([999], device=device)]",
                 f"{x}.flatten().gather(0, torch.tensor([-999], device=device))",
                 f"{x}.flatten().index_select(0, torch.tensor([999], device=device))"]
    return g.new(g.rng.choice(ways))


@kind(10)
def differentiate(g: Gen) -> str:
    if not g.autograd:
        raise Retry
    x, t = g.tensor(lambda t: t.requires_grad)
    leaf, _ = g.tensor(lambda t: t.requires_grad and t.is_leaf)
    loss = f"({x} * {x}).sum().abs()"
    return g.rng.choice((
        g.new(f"torch.autograd.grad({loss}, [{leaf}], allow_unused=True, retain_graph=True)[0]"),
        g.new(f"torch.autograd.grad({loss}, [{leaf}], allow_unused=True, create_graph=True)[0]"),
        f"{loss}.backward(retain_graph=True); {g.new(f'{leaf}.grad')}",
        f"{loss}.backward(); {leaf}.grad = None",
        f"with torch.no_grad(): {leaf}.mul_(0.5)",
        f"{x}.register_hook(lambda grad: grad * 2)", f"{x}.retain_grad()",
        f"{x}.requires_grad_()", f"{x}.detach_()",
    ))


# ---- what the generator has to know about tensors ---------------------------------------


def places(t: Tensor) -> Tensor:
    """Where each element lies in the storage, in units of the element size."""
    if t.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    at = torch.tensor(t.storage_offset())
    for size, stride in zip(t.shape, t.stride(), strict=True):
        at = at[..., None] + torch.arange(size) * stride
    return at.flatten()


def overlaps_itself(t: Tensor) -> bool:
    if t.is_contiguous():
        return False
    at = places(t)
    return len(set(at.tolist())) < at.numel()


def shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def same_place(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride(), a.storage_offset(), a.is_conj(), a.is_neg()) == (
        b.dtype, b.shape, b.stride(), b.storage_offset(), b.is_conj(), b.is_neg())


def broadcasts(src: torch.Size, dst: torch.Size) -> bool:
    return len(src) <= len(dst) and all(
        a in (1, b) for a, b in zip(reversed(src), reversed(dst), strict=False))


def castable(src: torch.dtype, dst: torch.dtype) -> bool:
    """Casts whose result is defined: never a float to an integer, which may be out of range."""
    return torch.can_cast(src, dst)


def fits_together(a: Tensor, b: Tensor) -> bool:
    both = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(x == y or 1 in (x, y) for x, y in both) and a.numel() * b.numel() < 2000
