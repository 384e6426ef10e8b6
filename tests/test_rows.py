"""Compiled calls on lists of tensors: few functions, whatever the number and sizes of tensors."""

import ctypes
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest
import torch
from cuda_machines import Emulator
from harness import agree, needs_tiny, numbers, only_on_cpu_memory, python
from torch import Tensor
from util import DEVICE

from torch_tiny import _C
from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.codegen_place import Kernel
from torch_tiny.engine.compile import compile_trace
from torch_tiny.engine.loadable import as_file
from torch_tiny.engine.rows import compiled, lists_of
from torch_tiny.engine.target import Cpu, Cuda
from torch_tiny.trace import Call, read_trace

pytestmark = [needs_tiny, pytest.mark.usefixtures("everything_compiled")]

SHAPES = ((64, 64), (7, 3), (1,), (), (5, 1, 4), (33,), (2, 3, 4, 5))

Lists = tuple[list[Tensor], ...]


def lists(where: str, count: int = 14) -> Lists:
    """Parameters, gradients and averages."""
    shapes = [SHAPES[i % len(SHAPES)] for i in range(count)]
    return tuple(
        [numbers(*shape, seed=100 * seed + i).to(where) for i, shape in enumerate(shapes)]
        for seed in range(3)
    )


def update(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> list[Tensor]:
    torch._foreach_mul_(g, torch.full((), 0.5).to(p[0].device))
    torch._foreach_lerp_(m, g, 0.1)
    root = torch._foreach_sqrt(torch._foreach_abs(m))
    torch._foreach_add_(root, [0.1 * i + 1 for i in range(len(p))])
    torch._foreach_addcdiv_(p, m, root, -0.25)
    return root


def _plain(where: str) -> Lists:
    return lists(where)


def _in_one_block(where: str) -> Lists:
    """Views of one storage each, one behind the other."""
    return tuple(list(numbers(60, seed=seed).to(where).split([7, 20, 1, 32])) for seed in range(3))


def _channels_last(where: str) -> Lists:
    def one(seed: int) -> Tensor:
        return numbers(2, 3, 4, 5, seed=seed).to(where).to(memory_format=torch.channels_last)

    return [one(1), one(2)], [one(3), one(4)], [one(5), one(6)]


def _in_two_orders(where: str) -> Lists:
    first, *rest = lists(where, 2)
    return ([x.t().contiguous().t() for x in first], *rest)


def _with_steps(where: str) -> Lists:
    p, g, m = lists(where, 3)
    return p, [numbers(128, 128, seed=9).to(where)[::2, ::2], *g[1:]], m


def _of_several_types(where: str) -> Lists:
    types = (torch.float32, torch.float64, torch.bfloat16)
    p, g, m = lists(where, 3)
    return tuple([x.to(t) for x, t in zip(one, types, strict=True)] for one in (p, g, m))


def _the_same_twice(where: str) -> Lists:
    p, g, m = lists(where, 2)
    return [p[0], p[0]], [g[0], g[0].clone()], [m[0], m[0].clone()]


def _over_each_other(where: str) -> Lists:
    p, g, m = (numbers(40, seed=seed).to(where) for seed in range(3))
    return [p[:20], p[20:]], [g[:20], g[10:30]], [m[:20], m[20:]]


def _empty_ones(where: str) -> Lists:
    p, g, m = lists(where, 3)
    nothing = torch.empty(0, 3, device=where)
    return [*p, nothing], [*g, nothing.clone()], [*m, nothing.clone()]


KINDS: tuple[Callable[[str], Lists], ...] = (
    *(_plain, _in_one_block, _channels_last, _in_two_orders, _with_steps, _of_several_types),
    _empty_ones,
)
IN_ORDER = only_on_cpu_memory("on a GPU tensors of a list that share memory have no order")


@pytest.mark.parametrize(
    "kind",
    [*KINDS, *(pytest.param(k, marks=IN_ORDER) for k in (_the_same_twice, _over_each_other))],
)
def test_any_memory(kind: Callable[[str], Lists]) -> None:
    def program(where: str) -> list[Tensor]:
        p, g, m = kind(where)
        kept = update(p, g, m)
        return [*p, *g, *m, kept[-1]]

    for _ in range(2):
        agree(program, DEVICE)


def _broadcast(where: str) -> list[Tensor]:
    """In one row an element for each, in another one for all."""
    a = [torch.ones(3).to(where), torch.ones(5).to(where)]
    torch._foreach_mul_(a, [torch.tensor([1.0, 2.0, 3.0]).to(where), torch.tensor(7.0).to(where)])
    return a


def _promoted(where: str) -> list[Tensor]:
    """Dimensions say which of two types the result has."""
    third = torch.tensor(1 / 3, dtype=torch.float64).to(where)
    numbers_too = [torch.full((5,), 0.1).to(where), torch.full((), 0.1).to(where)]
    halves = [torch.full((n,), 0.1).half().to(where) for n in (5, 4)]
    large = [torch.full((1,), 1e6).to(where) for _ in halves]
    return [*torch._foreach_mul(numbers_too, third), *torch._foreach_mul(halves, large)]


def _by_one_of_them(where: str) -> list[Tensor]:
    number, rest = torch.tensor(3.0).to(where), torch.ones(2).to(where)
    torch._foreach_mul_([number, rest], number)
    return [number, rest]


def _numbers_alone(where: str) -> list[Tensor]:
    parameters = [torch.full((), float(i)).to(where).requires_grad_() for i in range(6)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    torch.optim.Adam(parameters, fused=True).step()
    return parameters


@pytest.mark.parametrize(
    "program",
    [_broadcast, _promoted, pytest.param(_by_one_of_them, marks=IN_ORDER), _numbers_alone],
)
def test_numbers_among_tensors(program: Callable[[str], list[Tensor]]) -> None:
    for _ in range(3):
        agree(program, DEVICE)


def test_validation_of_views_of_one_storage() -> None:
    python(
        """
import torch
for _ in range(3):
    parts = list(torch.arange(60.0).to("tiny").split([7, 20, 33]))
    torch._foreach_add_(parts, 1.5)
    torch._foreach_mul_(parts, 2.5)
    assert torch.cat(parts).tolist() == ((torch.arange(60.0) + 1.5) * 2.5).tolist()
""",
        TORCH_TINY_VALIDATE="1",
        TORCH_TINY_CACHE="",
    )


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "adam fused": lambda p: torch.optim.Adam(p, fused=True, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "radam": lambda p: torch.optim.RAdam(p, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def program(where: str) -> list[Tensor]:
        parameters, gradients, _ = lists(where)
        optimizer = OPTIMIZERS[name](parameters)
        for _ in range(4):
            for one, gradient in zip(parameters, gradients, strict=True):
                one.grad = gradient.clone()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
        return parameters

    agree(program, DEVICE)


def _trace_of_a_step(count: int) -> str:
    parameters, gradients, _ = lists(DEVICE, count)
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    _C.set_mode("aten")
    try:
        for step in range(3):
            if step == 2:
                _C.listen(True)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            torch.tiny.synchronize()
    finally:
        traces = _C.listen(False)
        _C.set_mode("uop")
    return max(traces, key=len)


def test_a_step_over_many_tensors_has_few_functions() -> None:
    """No more than over a few."""
    few, many = (compile_trace(_trace_of_a_step(n)) for n in (14, 140))
    functions = [
        {(key, kernel["name"]) for key, (code, _) in made.built.items() for kernel in code.kernels}
        for made in (few, many)
    ]
    assert len(functions[1]) <= len(functions[0])
    assert not many.plan.failed
    assert max(len(code.kernels) for code, _ in many.built.values()) == 140


def test_on_a_gpu_a_step_over_many_tensors_has_few_launches(tmp_path: Path) -> None:
    """They compute what the kernels for the CPU do."""
    trace = read_trace(_trace_of_a_step(35))
    groups: dict[Hashable, list[Call]] = {}
    for call in trace.calls:
        if (kind := lists_of(call)) is not None:
            groups.setdefault(kind, []).append(call)
    launches = []
    for calls in groups.values():
        written = set().union(*(call.writes for call in calls))
        own, launched = compiled(calls, written, Cuda("sm_90"))
        same, called = compiled(calls, written, Cpu())
        assert same.buffers == own.buffers
        numbers = {i for i, buffer in enumerate(own.buffers) if buffer.slot is None}
        memory = [
            torch.rand(buffer.size, dtype=getattr(torch, str(buffer.dtype).removeprefix("torch.")))
            for buffer in own.buffers
        ]
        expected = [one.clone() for one in memory]
        emulator = Emulator(tmp_path)
        emulator.load(launched)
        emulator.run(launched, memory, numbers)
        on_cpu(called, expected)
        torch.testing.assert_close(memory, expected)
        launches.append(len(launched.kernels))
    assert len(groups) == 1 and launches[0] <= 8


def on_cpu(program: Program[Kernel], memory: list[Tensor]) -> None:
    with as_file(Cpu().build({"v0": program})) as path:
        library = ctypes.CDLL(path)
    for kernel in program.kernels:
        table = (ctypes.c_void_p * len(kernel.buffers))(
            *(memory[buffer].data_ptr() for buffer in kernel.buffers)
        )
        function = getattr(library, f"v0_{kernel.name}")
        function(table, ctypes.c_int64(0), ctypes.c_int64(kernel.parallel))
