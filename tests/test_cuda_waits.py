"""What happens on CUDA memory before anyone waits for it, and what must not be heard of it."""

import pytest
import torch
from harness import needs_tiny, numbers
from torch import nn
from util import KIND

pytestmark = [
    needs_tiny,
    pytest.mark.skipif(KIND != "cuda", reason="only a GPU works while the program goes on"),
]


def traces() -> int:
    count: int = torch.tiny.metrics()["traces"]
    return count


def wait_for_softmax(x: torch.Tensor, times: int) -> None:
    for _ in range(times):
        result = x.softmax(1)
        torch.tiny.synchronize()
        del result


def test_a_lone_call_that_was_waited_for_runs_when_it_is_recorded() -> None:
    x = numbers(8, 16)
    on_gpu = x.to("tiny")
    wait_for_softmax(on_gpu, 4)
    before = traces()
    result = on_gpu.softmax(1)
    assert traces() == before + 1
    torch.testing.assert_close(result.cpu(), x.softmax(1))
    assert traces() == before + 1


def test_a_wrong_guess_is_not_made_again() -> None:
    x = numbers(8, 16)
    on_gpu = x.to("tiny")
    wait_for_softmax(on_gpu, 4)
    for _ in range(3):
        result = on_gpu.softmax(1) * 2
        torch.testing.assert_close(result.cpu(), x.softmax(1) * 2)
    before = traces()
    probabilities = on_gpu.softmax(1)
    doubled = probabilities * 2
    assert traces() == before
    torch.testing.assert_close(doubled.cpu(), x.softmax(1) * 2)


def test_every_wait_is_counted() -> None:
    on_gpu = numbers(8, 16).to("tiny")
    wait_for_softmax(on_gpu, 4)
    torch.tiny.reset_metrics()
    wait_for_softmax(on_gpu, 5)
    assert torch.tiny.metrics()["syncs"] == 5
    assert {one["reason"] for one in torch.tiny.metrics()["causes"]} == {"synchronize"}


def test_a_lone_write_is_seen_by_the_next_call() -> None:
    x = numbers(8, 16)
    on_gpu = x.to("tiny")
    for _ in range(6):
        on_gpu.add_(1)
        torch.tiny.synchronize()
        x.add_(1)
    torch.testing.assert_close((on_gpu * 2).cpu(), x * 2)


@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_are_silent(
    network: type[nn.RNNBase], capfd: pytest.CaptureFixture[str]
) -> None:
    """cuDNN warns at every call of weights that do not lie in one piece; nobody can change that."""
    model = network(5, 7).to("tiny")
    for _ in range(4):
        model(numbers(3, 2, 5).to("tiny"))[0].sum().backward()
        torch.tiny.synchronize()
    assert capfd.readouterr().err == ""
