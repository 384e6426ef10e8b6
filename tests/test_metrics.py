"""Every run, fallback and plan is counted, with the line of the program that caused it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import KIND, needs_tiny, python
from torch import Tensor

pytestmark = needs_tiny


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    from_zero()


def from_zero() -> None:
    torch.tiny.synchronize()
    torch.tiny.reset_metrics()


def warm(program: Callable[[], object]) -> None:
    """The first call of its kind may run at once; count from the second."""
    program()
    from_zero()
    program()


def metrics() -> dict[str, Any]:
    return torch.tiny.metrics()


def lines_of(reason: str) -> list[str]:
    return [c["where"] for c in metrics()["causes"] if reason in c["reason"]]


def here(offset: int = 0) -> str:
    return f"test_metrics.py:{inspect.currentframe().f_back.f_lineno + offset}"


def test_calls_are_counted_by_operator(device: str) -> None:
    x = torch.ones(3, device=device)
    warm(lambda: (x + 1) * x + x)
    from_zero()
    y = (x + 1) * x + x
    counts = metrics()
    assert counts["calls_by_op"]["aten::add.Tensor"] == 2
    assert counts["calls_by_op"]["aten::mul.Tensor"] == 1
    assert counts["calls"] == sum(counts["calls_by_op"].values())
    assert counts["traces"] == 0
    assert y.tolist() == [3, 3, 3]
    assert metrics()["traces"] == 1


def test_item_is_a_cause(device: str) -> None:
    for _ in range(2):
        from_zero()
        x = torch.ones(3, device=device).sum()
        x.item()
    assert any(where.endswith(here(-1)) for where in lines_of("item")), metrics()["causes"]


def test_the_same_line_is_one_cause(device: str) -> None:
    x = torch.ones(3, device=device)
    x.add_(1).sum().item()
    from_zero()
    for _ in range(5):
        x.add_(1).sum().item()
    (cause,) = (c for c in metrics()["causes"] if c["where"].endswith(here(-1)))
    assert cause["count"] == 5


CAUSES: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: bool((x > 0).all()),
    "copy": lambda x: x.cpu(),
    "data-dependent": lambda x: (x > 0).nonzero(),
    "synchronize": lambda _: torch.tiny.synchronize(),
}


@pytest.mark.parametrize("reason", CAUSES)
def test_reasons(reason: str, device: str) -> None:
    warm(lambda: CAUSES[reason](torch.ones(3, device=device) + 1))
    assert lines_of(reason), metrics()["causes"]
    assert all("test_metrics.py:" in where for where in lines_of(reason))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.tolist(),
        lambda x: repr(x),
        lambda x: x.data_ptr(),
        lambda x: torch.equal(x, x),
        lambda x: x[x > 1],
        lambda x: x.unique(),
        lambda x: float(x[0]),
        lambda x: x.to("cpu"),
        lambda x: x.__dlpack__(),
        lambda x: torch.allclose(x, x),
    ],
)
def test_every_read_is_explained(read: Callable[[Tensor], object], device: str) -> None:
    warm(lambda: read(torch.ones(3, device=device) + 1))
    counts = metrics()
    assert counts["traces"] >= 1
    assert sum(c["count"] for c in counts["causes"]) == counts["traces"]
    assert all("test_metrics.py:" in c["where"] for c in counts["causes"]), counts["causes"]


def test_an_operator_run_at_once_is_listed(device: str) -> None:
    warm(lambda: torch.ones(3, device=device).nonzero())
    assert metrics()["at_once_by_op"] == {"aten::nonzero": 1}


def test_a_call_never_seen_before_is_counted(device: str) -> None:
    """Its form is looked up and missing: it may run at once, but not silently."""
    x = torch.ones(3, 1, 4, 1, 5, device=device)
    from_zero()
    x.cumsum(2)
    assert metrics()["metadata_misses"] >= 1
    from_zero()
    x.cumsum(2)
    assert metrics()["metadata_misses"] == 0
    assert metrics()["metadata_hits"] >= 1


def test_nothing_ordinary_runs_at_once(device: str) -> None:
    """Forward, backward and update of a network are recorded whole."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.ones(3, 4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(2):  # Adam makes its state in the first
        step(model, optimizer, x, y)
    from_zero()
    step(model, optimizer, x, y)
    assert metrics()["at_once_by_op"] == {}
    torch.tiny.synchronize()
    # On CUDA a thread is given the forward pass, the backward pass and the update.
    assert metrics()["traces"] <= (1 if KIND == "cpu" else 3)
    assert lines_of("optimizer")


def test_equal_steps_share_a_plan(device: str) -> None:
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.ones(3, 4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(3):
        step(model, optimizer, x, y).item()
    torch.tiny.reset_metrics()
    for _ in range(5):
        step(model, optimizer, x, y).item()
    assert metrics()["plan_misses"] == 0
    assert metrics()["plan_hits"] == metrics()["traces"] > 0
    assert metrics()["metadata_misses"] == 0


def test_a_number_that_changes_shares_the_plan(device: str) -> None:
    x = torch.ones(3, device=device)
    warm(lambda: (x * 0.5).sum().item())
    from_zero()
    results = [(x * (0.25 + i / 8)).sum().item() for i in range(1, 6)]
    assert results == [3 * (0.25 + i / 8) for i in range(1, 6)]
    assert metrics()["plan_misses"] == 0


def test_another_shape_is_another_plan(device: str) -> None:
    def work() -> None:
        for size in (31, 41, 51):
            (torch.ones(size, device=device) - 3).prod().item()

    warm(work)
    assert metrics()["plan_misses"] == 3
    from_zero()
    work()
    assert (metrics()["plan_misses"], metrics()["plan_hits"]) == (0, 3)


def test_the_limit_is_a_cause(device: str) -> None:
    x = torch.ones(3, device=device)
    for _ in range(200_000):
        x.add_(1)
        if lines_of("limit"):
            break
    assert lines_of("limit"), "nothing was run in 200000 calls"


def test_waiting_is_counted(device: str) -> None:
    x = torch.ones(3, device=device)
    assert metrics()["syncs"] == 0
    x.cpu()
    torch.tiny.synchronize()
    assert metrics()["syncs"] >= 1


def test_seconds(device: str) -> None:
    x = torch.ones(200, 200, device=device)
    for _ in range(20):
        x = x @ x / 200
    x.cpu()
    counts = metrics()
    assert counts["seconds_recording"] > 0
    assert counts["seconds_running"] > 0


def test_reset(device: str) -> None:
    torch.ones(3, device=device).cpu()
    torch.tiny.reset_metrics()
    counts = metrics()
    assert counts["calls"] == counts["traces"] == 0
    assert counts["calls_by_op"] == {}
    assert counts["causes"] == []


def test_report_for_people(device: str) -> None:
    import torch_tiny

    for _ in range(2):
        torch.ones(3, device=device).sum().item()
        where = here(-1)
    torch.ones(3, device=device).nonzero()
    report = torch_tiny.report()
    assert report.calls == metrics()["calls"]
    assert where in str(report)
    assert "aten::nonzero" in str(report)


def test_causes_name_the_callers_file_and_not_torch(device: str) -> None:
    model = torch.nn.Linear(3, 3).to(device)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    repr(model.weight)
    where = [c["where"] for c in metrics()["causes"]]
    assert where
    assert all("test_metrics.py:" in w for w in where)


def test_command_line_info() -> None:
    out = python(
        "import sys; sys.argv = ['torch-tiny', 'info']\n"
        "import torch_tiny.cli\ntorch_tiny.cli.main()"
    )
    assert torch.__version__ in out
    assert "tiny:0" in out
    assert KIND in out


def test_command_line_info_where_the_compiler_fails() -> None:
    out = python("from torch_tiny.cli import info\nprint(info())", CXX="false")
    assert "false, which fails" in out


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def test_a_program_whose_name_is_not_utf8(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.py"))
    file.write_text("""
import torch
x = torch.ones(3, device="tiny")
for _ in range(2): (x + 1).tolist()
print(torch.tiny.metrics()["causes"][0]["where"])
""")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("n\\udcff.py:4"), done.stdout
