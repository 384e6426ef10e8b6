"""On CUDA memory a trace that runs often becomes one CUDA graph; nobody notices but the clock.

Each program runs in a process of its own and is compared with the same program on the CPU.
"""

from pathlib import Path

import pytest
from harness import needs_tiny
from test_engine import TRAINING, auto
from util import KIND

pytestmark = [
    needs_tiny,
    pytest.mark.skipif(KIND != "cuda", reason="CUDA graphs need CUDA memory"),
]

GRAPHS = """
torch.backends.cuda.matmul.allow_tf32 = False

def graph_runs():
    return _C.metrics()["graph_runs"]

def same(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=2e-3, atol=1e-4)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def graphed(code: str, cache: Path) -> str:
    return auto(GRAPHS + code, cache)


def test_training_runs_as_graphs_and_stays_right(cache: Path) -> None:
    graphed(
        TRAINING
        + """
step, losses = make("tiny")
step_until(lambda: graph_runs() > 50, step)
other, expected = make("cpu")
for _ in losses:
    other()
same(torch.tensor(losses), torch.tensor(expected))
""",
        cache,
    )


@pytest.mark.parametrize("layer", ["attention", "recurrent"])
def test_layers_that_could_drop_out_run_as_graphs(layer: str, cache: Path) -> None:
    """Without dropout they draw nothing, so that nothing differs from run to run."""
    graphed(
        f"layer = {layer!r}"
        + """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).view(4, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(4, 8, 32)

class Recurrent(torch.nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]

def make(device):
    torch.manual_seed(1)
    net = (Attention() if layer == "attention" else Recurrent(32, 32)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    x, y = (torch.randn(4, 8, 32).to(device) for _ in range(2))
    losses = []
    def step():
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return step, losses

step, losses = make("tiny")
step_until(lambda: graph_runs() > 50, step)
other, expected = make("cpu")
for _ in losses:
    other()
same(torch.tensor(losses), torch.tensor(expected))
""",
        cache,
    )


def test_inputs_may_lie_anywhere_and_results_may_be_kept(cache: Path) -> None:
    graphed(
        """
def make(device):
    torch.manual_seed(1)
    weight = torch.randn(64, 64).to(device)
    batches = [torch.randn(32, 64).to(device) for _ in range(5)]
    kept = []
    def step():
        x = batches[len(kept) % 5]
        y = torch.tanh(x @ weight) @ weight
        kept.append((y, (y * y).mean()))
    return step, kept
step, kept = make("tiny")
step_until(lambda: graph_runs() > 20, step)
other, expected = make("cpu")
for (y, mean) in kept:
    other()
    same(y, expected[-1][0])
    same(mean, expected[-1][1])
""",
        cache,
    )


def test_a_result_may_be_the_next_input(cache: Path) -> None:
    graphed(
        """
def make(device):
    torch.manual_seed(1)
    weight = (torch.randn(32, 32) / 8).to(device)
    x = torch.randn(16, 32).to(device)
    states = [torch.zeros(16, 32).to(device)]
    def step():
        states.append(torch.tanh(states[-1] @ weight + x).relu() - states[-1] * 0.5)
        del states[:-1]
    return step, states
step, states = make("tiny")
steps = 0
def counted():
    global steps
    steps += 1
    step()
step_until(lambda: graph_runs() > 20, counted)
other, expected = make("cpu")
for _ in range(steps):
    other()
same(states[-1], expected[-1])
""",
        cache,
    )


def test_numbers_that_change_are_seen(cache: Path) -> None:
    graphed(
        """
x = torch.randn(64, 64)
weight = torch.randn(64, 64)
on_tiny, weight_on_tiny = x.to("tiny"), weight.to("tiny")
factor = 3.0
def step():
    global last
    last = torch.tanh(on_tiny @ weight_on_tiny) @ weight_on_tiny * factor
step_until(lambda: graph_runs() > 5, step)
for k in range(12):
    factor = 3.0 + k
    step()
    same(last, torch.tanh(x @ weight) @ weight * factor)
factor = 3.0
for k in range(60):
    step()
same(last, torch.tanh(x @ weight) @ weight * factor)
""",
        cache,
    )


def test_memory_written_in_place_and_from_outside(cache: Path) -> None:
    graphed(
        """
weight = torch.randn(48, 48) / 10
total, on_cpu = torch.zeros(48, 48).to("tiny"), torch.zeros(48, 48)
weight_on_tiny = weight.to("tiny")
source, steps = torch.randn(48, 48), 0
given = source.to("tiny")
def step():
    global steps, on_cpu
    steps += 1
    source.mul_(0.99)
    given.copy_(source)
    total.mul_(0.9).add_((given @ weight_on_tiny).sin() @ weight_on_tiny)
    on_cpu = on_cpu * 0.9 + (source @ weight).sin() @ weight
step_until(lambda: graph_runs() > 20, step)
same(total, on_cpu)
""",
        cache,
    )


def test_what_cannot_be_captured_runs_as_ever(cache: Path) -> None:
    graphed(
        """
a = torch.randn(24, 24)
a = a @ a.T
on_tiny = a.to("tiny")
def step():
    global values
    values = torch.linalg.eigvalsh(on_tiny + 1.0).exp() * 2.0
    torch.tiny.synchronize()
for _ in range(120):
    step()
step_until(settled, step)
for _ in range(60):
    step()
same(values, torch.linalg.eigvalsh(a + 1.0).exp() * 2.0)
same((on_tiny @ on_tiny).sum(), (a @ a).sum())
""",
        cache,
    )


def test_random_numbers_differ_from_run_to_run(cache: Path) -> None:
    graphed(
        """
x = torch.ones(64, 64, device="tiny")
seen = set()
def step():
    y = torch.nn.functional.dropout(x @ x, 0.5) * 2
    seen.add(y.sum().item())
step_until(settled, step)
for _ in range(60):
    step()
assert len(seen) > 50, len(seen)
""",
        cache,
    )


@pytest.mark.parametrize("is_first", [True, False], ids=["first process", "second process"])
def test_threads_that_used_no_cuda_before(is_first: bool, cache: Path) -> None:
    """Kernels are loaded and launched on whichever thread has to wait for results."""
    program = """
import threading
x = torch.randn(1000, 1000).to("tiny")
expected = ((x.cpu() * 3 + 1).tanh() - x.cpu()).abs()
torch.tiny.synchronize()
results = []
def step():
    def compute():
        results[:] = [((x * 3 + 1).tanh() - x).abs()]
        torch.tiny.synchronize()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    same(results[0], expected)
def runs_compiled():
    regions = [region for plan in _C.plans(0) for region in plan["regions"]]
    return any(region["engine"] == "uop" for region in regions)
step_until(runs_compiled, step)
for _ in range(20):
    step()
"""
    if not is_first:
        graphed(program, cache)
    graphed(program, cache)
