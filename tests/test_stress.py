"""Threads that do everything at once on one device: what make tsan and make asan look at most."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import pytest
import torch
from harness import needs_tiny
from torch import Tensor, nn

ROUNDS = 15  # of every thread, at least: the fast ones go on until the slow ones are done


def test_threads_that_do_everything_at_once(device: str) -> None:
    shared = torch.ones(64, 64, device=device)
    torch.ones(1).to(device).add(1).sum().item()
    crew = [
        lambda n: chain(shared, n),
        lambda n: chain(shared, n),
        training(device),
        training(device),
        lambda n: drop(device, n),
        lambda n: read(shared, n),
        lambda n: fail(device, n),
        lambda n: draw(shared, n),
        lambda n: hand_over(shared, n),
    ]
    play(crew)


@needs_tiny
def test_reports_beside_everything_else(device: str) -> None:
    import torch_tiny

    shared = torch.ones(16, 16, device=device)

    def report(n: int) -> None:
        assert torch.tiny.metrics()["calls"] >= 0
        assert "calls" in str(torch_tiny.report()) or n == 0
        torch.tiny.memory_stats()

    play([report, lambda n: chain(shared, n), lambda n: draw(shared, n), training(device)])


def play(crew: list[Callable[[int], None]]) -> None:
    """Every thread plays rounds until all have played enough; none may raise."""
    played = [0] * len(crew)
    failures: list[str] = []

    def work(i: int) -> None:
        try:
            while min(played) < ROUNDS and not failures:
                crew[i](played[i])
                played[i] += 1
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(crew))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def chain(shared: Tensor, n: int) -> None:
    x, expected = shared, 1.0
    for i in range(1 + n % 7):
        x, expected = x * 2 + i, expected * 2 + i
    if n % 3 == 0:
        assert x.mean().item() == expected


def training(device: str) -> Callable[[int], None]:
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.Adam(net.parameters())

    def train(n: int) -> None:
        loss = net(torch.ones(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if n % 4 == 0:
            assert loss.isfinite().item()

    return train


def drop(device: str, n: int) -> None:
    tensors = [torch.zeros(32, device=device) + i for i in range(20)]
    while tensors:
        tensors.pop(n % len(tensors))
    if n % 2:
        (torch.ones(8, device=device) * n).cpu()


def read(shared: Tensor, n: int) -> None:
    assert (shared + n).cpu()[0, 0] == n + 1
    assert (shared * 2).cpu().numpy()[3, 3] == 2
    x = torch.zeros(10 + n % 5, device=shared.device)
    x[2:5] = 1
    assert x.sum().item() == 3
    x.resize_(100)


def fail(device: str, n: int) -> None:
    """An error is raised by its own results, whoever runs the trace."""
    matrix = torch.zeros(4, 4, device=device)
    with pytest.raises(RuntimeError):
        (torch.linalg.inv(matrix) + n).sum().item()
    assert matrix.sum().item() == 0


def draw(shared: Tensor, n: int) -> None:
    torch.rand(100)
    kept = nn.functional.dropout(shared, 0.5)
    if n % 10 == 0:
        assert 0 < kept.count_nonzero().item() < kept.numel()


def hand_over(shared: Tensor, n: int) -> None:
    """A tensor is read by one thread while another drops it."""
    x, found = shared + n, list[float]()
    reader = threading.Thread(target=lambda y: found.append((y * 2).mean().item()), args=(x,))
    reader.start()
    x = x + 3
    reader.join()
    assert found == [2 * (n + 1)]
    assert x.mean().item() == n + 4
