"""Autograd in full: hooks, double backward, checkpoints, anomaly mode, threads, forward mode."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from harness import agree, agree_on_error, numbers
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from util import assert_same


def leaf(where: str, *shape: int, seed: int = 0) -> Tensor:
    return numbers(*shape, seed=seed).to(where).requires_grad_()


def test_accumulation_and_zero(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = leaf(where, 3)
        (x * x).sum().backward()
        first = x.grad.clone()
        (x**3).sum().backward()
        second = x.grad.clone()
        x.grad.zero_()
        x.exp().sum().backward()
        return [first, second, x.grad]

    agree(program, device)


def test_backward_with_a_vector_and_retain_graph(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = leaf(where, 2, 3)
        y = x.sigmoid()
        v = numbers(2, 3, seed=1).to(where)
        y.backward(v, retain_graph=True)
        y.backward(v * 2)
        return [x.grad]

    agree(program, device)


def test_double_and_triple_backward(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = leaf(where, 4)
        y = (x.sin() * x**3).sum()
        results = []
        for _ in range(3):
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
            results.append(grad)
            y = grad.square().sum()
        return results

    agree(program, device)


def test_gradient_penalty(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        w1, w2, x = leaf(where, 4, 8), leaf(where, 8, 1, seed=1), leaf(where, 5, 4, seed=2)
        score = torch.tanh(x @ w1) @ w2
        (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        (score.mean() + (grad.norm(dim=1) - 1).square().mean()).backward()
        return [w1.grad, w2.grad]

    agree(program, device)


def test_tensor_hooks(device: str) -> None:
    def program(where: str) -> list[Any]:
        x = leaf(where, 3)
        seen: list[Tensor] = []
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.clone()))
        y.register_hook(lambda g: g * 10)
        handle = x.register_hook(lambda g: g * 0)
        handle.remove()
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad * 1))
        y.pow(2).sum().backward()
        return [x.grad, y.grad, seen]

    agree(program, device)


def test_module_hooks(device: str) -> None:
    def program(where: str) -> list[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2).to(where)
        seen: list[Any] = []
        layer.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        layer.register_forward_hook(lambda *args: args[2] + 1)
        layer.register_full_backward_hook(lambda _, gin, gout: seen.append([gin[0], gout[0]]))
        layer(leaf(where, 4, 3)).square().sum().backward()
        return [layer.weight.grad, seen]

    agree(program, device)


def test_node_hooks_and_graph_names(device: str) -> None:
    def program(where: str) -> list[Any]:
        x = leaf(where, 3)
        y = (x.exp() + x).prod()
        calls: list[int] = []
        y.grad_fn.register_prehook(lambda g: calls.append(len(g)))
        y.grad_fn.register_hook(lambda _, go: calls.append(len(go)))
        names = [type(y.grad_fn).__name__, *(type(f).__name__ for f, _ in y.grad_fn.next_functions)]
        y.backward()
        return [x.grad, calls, names]

    agree(program, device)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        w, x = leaf(where, 4, 4), leaf(where, 2, 4, seed=1)

        def block(x: Tensor) -> Tensor:
            return F.dropout(torch.tanh(x @ w), 0.0) @ w

        y = checkpoint(block, x, use_reentrant=reentrant)
        checkpoint(block, y, use_reentrant=reentrant).sum().backward()
        return [w.grad, x.grad]

    agree(program, device)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_repeats_the_random_numbers(reentrant: bool, device: str) -> None:
    torch.manual_seed(3)
    x = torch.ones(100, device=device, requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t * 1, 0.5), x, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad.equal(y.detach())


def test_checkpoint_sequential(device: str) -> None:
    def program(where: str) -> list[Any]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4))).to(where)
        checkpoint_sequential(layers, 2, leaf(where, 2, 3), use_reentrant=False).sum().backward()
        return [p.grad for p in layers.parameters()]

    agree(program, device)


def test_anomaly_mode_names_the_forward_line(device: str) -> None:
    with torch.autograd.set_detect_anomaly(True), pytest.warns(UserWarning, match="sqrt"):
        x = torch.zeros(2, device=device, requires_grad=True)
        y = (x * 0).sqrt() * 0
        with pytest.raises(RuntimeError, match="returned nan"):
            y.sum().backward()


def test_many_threads_call_backward(device: str) -> None:
    def program(where: str) -> Tensor:
        x = leaf(where, 50)
        errors: list[BaseException] = []

        def work(factor: int) -> None:
            try:
                for _ in range(5):
                    (x * factor).square().sum().backward()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        return x.grad

    agree(program, device)


class Scale(torch.autograd.Function):
    """y = x * factor, with the gradient of y counted twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * ctx.factor * 2 + x * 0, None


class AddInto(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad * 3


def test_custom_functions(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = leaf(where, 3), leaf(where, 3, seed=1)
        z = Scale.apply(x, 3.0)
        w = AddInto.apply(z * 1, y)
        (grad,) = torch.autograd.grad(w.square().sum(), x, create_graph=True)
        grad.sum().backward()
        return [z, w, grad, x.grad]

    agree(program, device)


def test_forward_mode(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, t = numbers(3, 3).to(where), numbers(3, 3, seed=1).to(where)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            y = torch.tanh(dual @ dual.T).diagonal().cumsum(0)
            y[0] = dual.sum()
            value, tangent = forward_ad.unpack_dual(y)
            inverse = forward_ad.unpack_dual(torch.linalg.inv(dual)).tangent
        return [value, tangent, inverse]

    agree(program, device, strides=False)


def test_forward_over_reverse(device: str) -> None:
    def program(where: str) -> Tensor:
        x, t = leaf(where, 4), numbers(4, seed=1).to(where)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            (grad,) = torch.autograd.grad(dual.pow(3).sum(), dual, create_graph=True)
            return forward_ad.unpack_dual(grad).tangent

    agree(program, device)


def test_saved_tensor_hooks(device: str) -> None:
    def program(where: str) -> list[Any]:
        packed: list[tuple[int, ...]] = []

        def pack(x: Tensor) -> Tensor:
            packed.append(tuple(x.shape))
            return x.cpu() * 2

        x = leaf(where, 3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: (x / 2).to(where)):
            y = x.exp() * x
        y.sum().backward()
        return [x.grad, packed]

    agree(program, device)


def test_save_on_cpu(device: str) -> None:
    def program(where: str) -> Tensor:
        x = leaf(where, 3)
        with torch.autograd.graph.save_on_cpu():
            y = x.exp() * x
        y.sum().backward()
        return x.grad

    agree(program, device)


def test_in_place_on_graphs(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, v = leaf(where, 4, 3), leaf(where, 3, seed=1)
        y = x * 2
        y[1].mul_(v)
        y[:, 0] = v[0]
        y.T[2].add_(1).relu_()
        z = y.clone()
        z[z > 0] = 0.5
        z.index_put_((torch.tensor([0, 2], device=where),), v)
        (y.square().sum() + z.square().sum()).backward()
        return [y, z, x.grad, v.grad]

    agree(program, device)


ERRORS = {
    "leaf": lambda d: leaf(d, 3).add_(1),
    "view_of_leaf": lambda d: leaf(d, 3)[0].add_(1),
    "version": lambda d: modified_after_saving(d).backward(),
    "version_by_view": lambda d: modified_after_saving(d, view=True).backward(),
    "twice": lambda d: [(y := (leaf(d, 3) ** 2).sum()).backward(), y.backward()],
    "not_a_scalar": lambda d: (leaf(d, 3) * 2).backward(),
    "no_grad": lambda d: torch.ones(3, device=d).sum().backward(),
    "unused": lambda d: torch.autograd.grad(leaf(d, 3).sum(), leaf(d, 3)),
    "multi_view": lambda d: (leaf(d, 3) * 1).unbind()[0].add_(1),
    "detach_then_grad": lambda d: leaf(d, 3).detach().sum().backward(),
    "no_grad_view": lambda d: view_made_in_no_grad(d).add_(1),
    "shape": lambda d: (leaf(d, 3) * 2).backward(torch.ones(4, device=d)),
    "inference": lambda d: inference_tensor(d).add_(leaf(d, 3)),
    "nondifferentiable": lambda d: leaf(d, 3).argmax().backward(),
    "higher_order_of_backward_only": lambda d: torch.autograd.grad(
        torch.autograd.grad((leaf(d, 3) * 1).sum(), leaf(d, 3), allow_unused=True)[0], leaf(d, 3)
    ),
}


def modified_after_saving(where: str, view: bool = False) -> Tensor:
    y = leaf(where, 3) * 1
    z = y.exp()
    loss = (z * 2).sum()
    (z[:1] if view else z).add_(1)
    return loss


def view_made_in_no_grad(where: str) -> Tensor:
    y = leaf(where, 3) * 1
    with torch.no_grad():
        return y[:2]


def inference_tensor(where: str) -> Tensor:
    with torch.inference_mode():
        return torch.ones(3, device=where)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, device: str) -> None:
    agree_on_error(ERRORS[name], device, message="version" not in name)


def test_version_error_explains(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version 1"):
        modified_after_saving(device).backward()


def test_grad_modes(device: str) -> None:
    x = leaf(device, 3)
    with torch.no_grad():
        assert not (x * 2).requires_grad
        x.add_(1)
        with torch.enable_grad():
            assert (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference()
        y[0] = 5
    assert_same(y[0], torch.tensor(5.0), offset=False)
    assert_same(x, numbers(3) + 1)


def test_jacobian_and_hessian(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(3).to(where)
        return [
            torch.autograd.functional.jacobian(lambda t: t.exp().outer(t), x),
            torch.autograd.functional.hessian(lambda t: t.pow(3).prod(), x),
            torch.autograd.functional.jacobian(torch.sin, x, vectorize=True),
        ]

    agree(program, device)


def test_gradcheck_of_a_network(device: str) -> None:
    torch.manual_seed(0)
    net = (
        torch.nn.Sequential(
            torch.nn.Conv1d(1, 2, 2), torch.nn.Softplus(), torch.nn.Flatten(), torch.nn.Linear(6, 2)
        )
        .double()
        .to(device)
    )
    x = numbers(2, 1, 4, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(net, (x,))
    assert torch.autograd.gradgradcheck(net, (x,), fast_mode=True)


def test_gradients_to_the_cpu_and_back(device: str) -> None:
    x = leaf("cpu", 3)
    (x.to(device).exp().cpu() * 2).sum().backward()
    assert_same(x.grad, numbers(3).exp() * 2)


def test_deep_graph(device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + 1
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
