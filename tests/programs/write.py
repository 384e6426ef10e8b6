"""Statements that write in place, through views, by index, by mask, into out=."""

from __future__ import annotations

import torch
from util import overlaps_itself

from .gen import Gen, NothingSuitsError, kind, shares_storage


@kind(12)
def write_number(g: Gen) -> str:
    x, t = g.target(plain=False)
    number = g.number(t.dtype)
    if overlaps_itself(t) or g.chance(0.3):
        return g.rng.choice((f"{x}.fill_({number})", f"{x}.zero_()"))
    return g.rng.choice(
        (
            f"{x}.add_({number})",
            f"{x}.mul_({number})",
            f"{x} -= {number}",
            f"{x}.fill_({number})",
            f"{x}[...] = {number}",
            f"{x}.clamp_(-2, 2)",
            f"{x}.neg_()",
            f"{x}.copy_({x}.clone() * 2)",
            f"{x}.mul_(torch.tensor({number}))",
            f"{x}.relu_()",
            f"{x}.conj_physical_()",
        )
    )


@kind(16)
def write_tensor(g: Gen) -> str:
    x, t = g.target()
    y = g.source(t)
    return g.rng.choice(
        (
            f"{x}.add_({y})",
            f"{x}.mul_({y})",
            f"{x}.sub_({y})",
            f"{x}.copy_({y})",
            f"{x} += {y}",
            # Expanded: Python fills with a 0-dim tensor of the CPU, and copies one of any device.
            f"{x}[...] = {y}.expand_as({x})",
            f"{x}.copy_({y})",
            f"{x}.addcmul_({y}, {y})",
            f"{x}.copy_({y}.detach().cpu().clone())",
            f"{x}.set_(({x} + {y}).to({x}.dtype))" if not g.autograd else f"{x}.add_({y})",
        )
    )


@kind(8)
def write_by_mask(g: Gen) -> str:
    x, t = g.target()
    number = g.number(t.dtype)
    mask = g.rng.choice(
        (
            f"({x} == {x}.clone())",
            f"({x} != 0)",
            f"torch.zeros_like({x}, dtype=torch.bool)",
            f"(seeded(3, {tuple(t.shape)}, torch.bool).to(device))",
        )
    )
    return g.rng.choice(
        (
            f"{x}.masked_fill_({mask}, {number})",
            f"{x}[{mask}] = {number}",
            f"{x}.masked_fill_({mask}, torch.tensor({number}, device=device, dtype={x}.dtype))",
            f"{x}.masked_scatter_({mask}, {x}.clone())",
            f"m = {mask}; {x}[m] = {x}[m] * 2; del m",
        )
    )


@kind(10)
def write_by_index(g: Gen) -> str:
    x, t = g.target()
    if t.dim() == 0 or t.numel() == 0 or t.dtype == torch.bool:
        raise NothingSuitsError
    d = g.dim(t)
    number, size, seed = g.number(t.dtype), t.size(d), g.rng.randint(0, 99)
    place = g.rng.choice((", device=device", ", device=device", ""))
    rows = g.rng.sample(range(t.size(0)), g.rng.randint(1, t.size(0)))
    # An index may be smaller than the tensor, whose other elements are left alone.
    of = tuple(g.rng.randint(1, n) for n in t.shape) if g.chance(0.5) else tuple(t.shape)
    at, half, rest = f"indices({seed}, {of}, {size}).to(device)", t.size(0) // 2, -(-t.size(0) // 2)
    one = f"torch.tensor({g.rng.sample(range(size), g.rng.randint(1, size))}, device=device)"
    return g.rng.choice(
        (
            f"{x}[torch.tensor({rows}{place})] = {number}",
            f"{x}[torch.tensor({rows}{place})] += {number}",
            f"{x}[{rows}] = {x}[{rows}] * 2",
            f"{x}.index_put_((torch.tensor({rows + rows}{place}),), "
            f"{x}[0].clone(), accumulate=True)",
            f"{x}.scatter_({d}, {at}, {number})",
            f"{x}.scatter_({d}, {at}, {number})"
            if g.gpu and t.dtype != torch.int64
            else f"{x}.scatter_add_({d}, {at}, {x}.clone())",
            f"{x}.scatter_reduce_({d}, {at}, {x}.clone(), '{g.rng.choice(('amax', 'amin'))}')"
            if not t.dtype.is_complex
            else f"{x}.scatter_({d}, {at}, {number})",
            f"{x}[:{half}].copy_({x}[{rest}:])",
            f"{x}[:{half}] *= {x}[{rest}:].flip(0)",
            f"{x}.index_fill_({d}, {one}, {number})",
            f"{x}.index_add_({d}, {one}, {x}.index_select({d}, {one}))",
            f"{x}.index_copy_({d}, {one}, {x}.index_select({d}, {one}) * 2)",
            f"{x}[0], {x}[-1] = {x}[-1].clone(), {x}[0].clone()",
            f"{x}.put_(torch.tensor([0, -1], device=device), {x}.flatten()[:2].clone())"
            if t.numel() > 1
            else f"{x}.fill_({number})",
            f"{x}[{', '.join(str(s - 1) for s in t.shape)}] = {number}",
        )
    )


@kind(2)
def swap(g: Gen) -> str:
    x, t = g.target()
    y, s = g.target()
    if t.shape != s.shape or t.dtype != s.dtype or shares_storage(s, t):
        raise NothingSuitsError
    return f"c = {x}.clone(); {x}.copy_({y}); {y}.copy_(c); del c"


@kind(3)
def change_storage(g: Gen) -> str:
    if g.autograd:
        raise NothingSuitsError
    x, t = g.tensor(lambda t: t.untyped_storage().resizable())
    y, s = g.tensor(lambda s: s.dtype == t.dtype)
    number = g.number(t.dtype)
    room = s.untyped_storage().nbytes() // s.element_size()
    return g.rng.choice(
        (
            f"{x}.resize_({g.shape()}).fill_({number})",
            f"{x}.resize_(2, 7).fill_({number})",
            f"{x}.set_({y})",
            f"{x}.data = {y}" if t.is_conj() == s.is_conj() else f"{x}.set_({y})",
            f"{x}.set_({y}.untyped_storage(), {min(1, room)}, ({max(room - 1, 0)},), (1,))",
            f"{x}.set_()" if g.chance(0.2) else f"{x}.resize_as_({y}).fill_({number})",
        )
    )


@kind(6)
def write_out(g: Gen) -> str:
    """out= of the right size, or of another, which is resized with a warning."""
    x, t = g.target()
    y = g.source(t, lambda s: s.numel() > 0 and (s.shape == t.shape or g.chance(0.2)))
    if t.dtype == torch.bool or not t.untyped_storage().resizable():
        raise NothingSuitsError  # the CPU leaves what it cannot resize larger than its storage
    number = g.number(t.dtype)
    return g.rng.choice(
        (
            f"torch.add({y}, {number}, out={x})",
            f"torch.mul({y}, {y}, out={x})",
            f"torch.cat([{y}.clone(), {y}.clone()], out={x})",
            f"torch.neg({y}, out={x})",
            f"torch.sum({y}.clone(), 0, dtype={x}.dtype, out={x})",
            f"torch.where({y}.clone() == {y}.clone(), {y}.clone(), {y}.clone(), out={x})",
            f"torch.index_select({y}.to({x}.dtype), 0, torch.tensor([0], device=device), out={x})"
            if t.dim()
            else f"torch.neg({y}, out={x})",
        )
    )


@kind(4)
def foreach(g: Gen) -> str:
    """Not _foreach_zero_ on a GPU, where it does not count as a write."""
    x, t = g.target()
    y, s = g.target()
    if shares_storage(t, s) or overlaps_itself(t) or overlaps_itself(s):
        raise NothingSuitsError
    number = g.number(t.dtype)
    if t.dtype == torch.bool or s.dtype == torch.bool:
        raise NothingSuitsError
    return g.rng.choice(
        (
            f"torch._foreach_add_([{x}, {y}], 1)",
            f"torch._foreach_mul_([{x}, {y}], {number if t.dtype == s.dtype else 2})",
            g.new(f"torch._foreach_add([{x}, {y}], [{x}, {y}])", 2),
            g.new(f"torch._foreach_abs([{x}, {y}])", 2),
            f"torch._foreach_copy_([{x}], [{y}])"
            if t.shape == s.shape and t.dtype == s.dtype
            else f"torch._foreach_{'neg' if g.gpu else 'zero'}_([{x}, {y}])",
            f"torch._foreach_addcmul_([{x}], [{x}.clone()], [{x}.clone()], [0.5])"
            if t.dtype.is_floating_point
            else f"torch._foreach_neg_([{x}, {y}])",
        )
    )


@kind(3)
def write_from_the_host(g: Gen) -> str:
    """Through NumPy's view of the same memory, which both sides see."""
    x, t = g.target()
    if not g.shows_memory or t.dtype == torch.bfloat16 or t.is_conj() or t.is_neg():
        raise NothingSuitsError
    return f"n = {x}.detach().numpy(); {x}.detach().add_(1); n *= 2; {x}.detach().sub_(1); del n"
