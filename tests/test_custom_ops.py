"""Operators from torch.library that only have a kernel for the memory run on the device too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread

import pytest
import torch
from harness import agree, needs_tiny, numbers, synchronize
from torch import Tensor
from util import KIND

KEY = KIND.upper()


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    library = torch.library.Library("tinytest", "DEF")
    library.define("both(Tensor x) -> (Tensor, Tensor)")
    library.impl("both", lambda x: (x + 1, x.sum()), KEY)
    library.define("sums(Tensor[] xs) -> Tensor[]")
    library.impl("sums", lambda xs: [x.sum() for x in xs], KEY)
    library.define("halves(Tensor x) -> Tensor[]")
    library.impl("halves", lambda x: list((x * 2).chunk(2)), KEY)
    library.define("ends(Tensor x) -> (Tensor, Tensor)")
    library.impl("ends", lambda x: ((y := x * 2)[:1], y[-2:]), KEY)
    library.define("into(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("into", lambda x, *, out: out.copy_(x * 2), KEY)
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x.sin() + x.cos(), "CompositeImplicitAutograd")
    library.define("explicit(Tensor x) -> Tensor")
    library.impl("explicit", lambda x: x.exp(), "CompositeExplicitAutograd")
    library.define("size(Tensor x) -> int")
    library.impl("size", lambda x: int(x.sum()), KEY)
    library.define("with_options(Tensor x, float a=2, str mode='mul', int[]? dims=None) -> Tensor")
    library.impl("with_options", options, KEY)
    yield
    library._destroy()


def options(
    x: Tensor, a: float = 2, mode: str = "mul", dims: Sequence[int] | None = None
) -> Tensor:
    y = x * a if mode == "mul" else x + a
    return y.sum(dims) if dims else y


@torch.library.custom_op("tinytest::triple", mutates_args=(), device_types=KIND)
def triple(x: Tensor) -> Tensor:
    return torch.from_numpy(x.cpu().numpy() * 3).to(x.device)


@torch.library.custom_op("tinytest::faked", mutates_args=(), device_types=KIND)
def faked(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


@faked.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.size(0), y.size(1))


@torch.library.custom_op("tinytest::halve_", mutates_args=("x",), device_types=KIND)
def halve_(x: Tensor, times: int) -> None:
    host = x.cpu()  # on cpu memory x itself
    host.numpy()[...] /= 2**times
    x.data.copy_(host)


@torch.library.custom_op("tinytest::positive", mutates_args=(), device_types=KIND)
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@torch.library.custom_op("tinytest::cube", mutates_args=(), device_types=KIND)
def cube(x: Tensor) -> Tensor:
    return x**3


def _save(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0])  # type: ignore[attr-defined]


cube.register_autograd(lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2, setup_context=_save)


@torch.library.custom_op("tinytest::fails", mutates_args=(), device_types=KIND)
def fails(x: Tensor) -> Tensor:  # noqa: ARG001 (custom_op reads the signature)
    raise ValueError("the kernel does not like this")


CALLS = {
    "without_fake": lambda x: triple(x.T[1:] + 1),
    "with_fake": lambda x: faked(x, x.T) + 1,
    "twice": lambda x: [triple(x), triple(x), triple(x[:1])],
    "two_results": lambda x: list(torch.ops.tinytest.both(x)),
    "list_of_results": lambda x: torch.ops.tinytest.sums([x, x.T, x[0]]),
    "composite": lambda x: torch.ops.tinytest.composite(x),
    "explicit": lambda x: torch.ops.tinytest.explicit(x),
    "options": lambda x: [
        torch.ops.tinytest.with_options(x),
        torch.ops.tinytest.with_options(x, 3.5, "add", [0]),
        torch.ops.tinytest.with_options(x, 4.5, dims=[1]),
    ],
    "no_tensor": lambda x: torch.ops.tinytest.size((x > 0) * 2),
    "out": lambda x: [out := torch.zeros_like(x), torch.ops.tinytest.into(x, out=out)],
    "data_dependent": lambda x: [positive(x), positive(-x), positive(x * 0)],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, device: str) -> None:
    agree(lambda d: CALLS[name](numbers(3, 4).to(d)), device)


def test_results_in_one_piece_are_taken_apart(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(4, 3).to(where).T
        return [*torch.ops.tinytest.halves(x), *torch.ops.tinytest.ends(x)]

    agree(program, device, offset=False)


def test_results_of_another_shape_each_time(device: str) -> None:
    """The same arguments in form, but the shape depends on the data: nothing may be remembered."""

    def program(where: str) -> list[Tensor]:
        x = numbers(4).to(where)
        return [positive(x + i) for i in (-5.0, 0.25, 5.0)]

    agree(program, device)


def test_writing_in_place(device: str) -> None:
    def program(where: str) -> list[object]:
        x = numbers(3, 4).to(where)
        view = x[1]
        x.add_(1)
        halve_(view, 2)
        halve_(x, 1)
        x.sub_(1)
        return [x, view, x._version]

    agree(program, device)


def test_gradients(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(4).to(where).requires_grad_()
        y = cube(x * 2)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        grad.sum().backward()
        return [y, grad, x.grad]

    agree(program, device)


def test_an_error_of_the_kernel(device: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match="does not like this"):
        fails(numbers(3).to(device))
        synchronize(device)
    assert triple(torch.ones(2, device=device)).tolist() == [3, 3]


@needs_tiny
def test_a_kernel_of_its_own_for_the_device(device: str) -> None:
    @torch.library.custom_op("tinytest::where_am_i", mutates_args=(), device_types="tiny")
    def where_am_i(x: Tensor) -> Tensor:
        return x + 1

    assert where_am_i(torch.ones(2, device=device)).tolist() == [2, 2]
    with pytest.raises(NotImplementedError):
        where_am_i(torch.ones(2))


@needs_tiny
def test_no_kernel_at_all_is_a_clear_error(device: str) -> None:
    library = torch.library.Library("tinytest_none", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="tinytest_none::nothing"):
        torch.ops.tinytest_none.nothing(torch.ones(2, device=device))
        synchronize(device)
    library._destroy()


def test_opcheck(device: str) -> None:
    x = numbers(3).to(device).requires_grad_()
    torch.library.opcheck(cube, (x,), test_utils="test_schema")


def one_operator(name: str, kernel: Callable[[Tensor], Tensor]) -> torch.library.Library:
    library = torch.library.Library(name, "DEF")
    library.define("call(Tensor x) -> Tensor")
    library.impl("call", kernel, KEY)
    library.impl("call", torch.empty_like, "Meta")
    return library


@needs_tiny
def test_a_library_is_destroyed_while_a_thread_registers_operators(device: str) -> None:
    """What was recorded runs before, without the dispatcher's lock."""
    x, running, registered = torch.ones(4, device=device), Event(), Event()
    waits, others = [False], list[torch.library.Library]()

    def kernel(given: Tensor) -> Tensor:
        running.set()
        assert not waits[0] or registered.wait(60)
        return given + 1

    def register() -> None:
        running.wait(60)
        others.append(one_operator("tinytest_other", lambda given: given))
        registered.set()

    library = one_operator("tinytest_gone", kernel)
    torch.ops.tinytest_gone.call(x)
    running.clear()
    waits[0] = True
    y = torch.ops.tinytest_gone.call(x)
    thread = Thread(target=register)
    thread.start()
    library._destroy()
    thread.join(60)
    assert y.tolist() == [2] * 4
    others[0]._destroy()


@needs_tiny
def test_an_operator_that_is_gone_has_run_though_another_one_failed(device: str) -> None:
    x, fails = torch.ones(4, device=device), [False]

    def kernel(given: Tensor) -> Tensor:
        if fails[0]:
            raise ValueError("as told")
        return given + 1

    failing = one_operator("tinytest_failing", kernel)
    sound = one_operator("tinytest_sound", lambda given: given + 2)
    torch.ops.tinytest_failing.call(x), torch.ops.tinytest_sound.call(x)
    fails[0] = True
    lost = torch.ops.tinytest_failing.call(x)
    failing._destroy()
    y = torch.ops.tinytest_sound.call(x)
    sound._destroy()
    with pytest.raises(ValueError, match="as told"):
        synchronize()
    assert y.tolist() == [3] * 4
    for _ in range(2):  # as often as it is asked for
        with pytest.raises(ValueError, match="as told"):
            lost.tolist()
