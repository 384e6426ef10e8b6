"""What a program of PyTorch's expects of portable devices: networks, copies, factorizations."""

import pytest
from harness import needs_cpu_memory, needs_tiny
from harness import on_portable as run

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes


@pytest.fixture
def kind(portable: str) -> str:
    return portable


def test_recurrent_networks_need_no_host(kind: str) -> None:
    code = """
def train(device):
    torch.manual_seed(0)
    lstm, gru = torch.nn.LSTM(3, 4, 2, batch_first=True), torch.nn.GRU(4, 2, bidirectional=True)
    weights = [*lstm.to(device).parameters(), *gru.to(device).parameters()]
    y, (state, cell) = lstm(torch.randn(2, 3, 3).to(device))
    loss = gru(y)[0].square().sum() + cell.sum()
    return [y, state, loss, *torch.autograd.grad(loss, weights)]
for ours, theirs in zip(train("tiny"), train("cpu")):
    torch.testing.assert_close(ours.cpu(), theirs)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_a_model_is_copied_and_scaled_on_the_device(kind: str) -> None:
    """deepcopy copies bytes, GradScaler asks for float64."""
    code = """
import copy
def train(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(device)
    model.weight.data.mul_(2)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1)
    for size in (1.0, 1e38):
        optimizer.zero_grad()
        loss = (model(torch.full((3, 4), size, device=device)) * size).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for mine, theirs in zip(average.parameters(), model.parameters()):
            mine.data.lerp_(theirs.data, 0.5)
    return [*model.parameters(), *average.parameters(), torch.tensor(scaler.get_scale())]
for ours, theirs in zip(train("tiny"), train("cpu")):
    torch.testing.assert_close(ours.cpu(), theirs)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_one_matrix_for_two_arguments(kind: str) -> None:
    """WebGPU does not take a buffer twice."""
    code = """
x = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
for y in (x, x + 1):
    z = y.to("tiny")
    pairs = [(torch.linalg.solve(m, m), torch.cholesky_solve(m, m)) for m in (z, z * 2, y, y * 2)]
    for ours, theirs in zip(pairs[:2], pairs[2:]):
        torch.testing.assert_close([r.cpu() for r in ours], list(theirs))
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_factors_that_are_constant_need_no_host(kind: str) -> None:
    """L of a matrix of one row is 1, which the scheduler sees."""
    code = """
def program(device):
    x = torch.tensor([[2.0]], device=device, requires_grad=True)
    _, lower, upper = torch.linalg.lu(x)
    (first,) = torch.autograd.grad((upper**3).sum() + lower.sum(), x, create_graph=True)
    return [first.item(), torch.autograd.grad(first.sum(), x)[0].item()]
assert program("tiny") == program("cpu")
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_errors_of_factorizations_are_the_cpus(kind: str) -> None:
    """Also where a good matrix came first, and for what is not finite."""
    code = """
linalg, inf, nan = torch.linalg, float("inf"), float("nan")
def of(f, *matrices):
    def results(device):
        for matrix in matrices:
            try:
                yield [r.tolist() for r in f(matrix.to(device))][1:]
            except RuntimeError as error:
                yield type(error).__name__, str(error).partition(" (raised")[0]
    ours, theirs = list(results("tiny")), list(results("cpu"))
    assert ours == theirs, (ours, theirs)
good, bad = torch.eye(2) * 4, torch.tensor([[1.0, 2.0], [2.0, 1.0]])
for dtype in (torch.float32, torch.complex64):
    of(lambda x: linalg.cholesky_ex(x, check_errors=True), good.to(dtype), bad.to(dtype))
    of(lambda x: linalg.inv_ex(x, check_errors=True), good.to(dtype), good.to(dtype) * 0)
of(lambda x: linalg.lu_factor_ex(x, check_errors=True), good, good * 0)
of(lambda x: linalg.solve_ex(x, x, check_errors=True), good, good * 0)
of(linalg.cholesky_ex, torch.tensor([[inf, 1.0], [1.0, 2.0]]))
of(lambda x: [torch.cholesky_inverse(x)], good, good * 0)
of(lambda x: [x, linalg.slogdet(x).sign], torch.tensor([[1.0, nan], [0.0, 1.0]]))
"""
    assert run(kind, code) == []
