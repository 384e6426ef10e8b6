"""What costs speed without changing a result is counted, named with the user's line, and told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, python

from torch_tiny import failures

pytestmark = [needs_tiny, needs_cpu_memory]

TRACE = (
    '{"slots":[[12,0],[12,1],[12,0]],"calls":['
    '{"op":"aten::sin","args":[["t",0,0,"Float",[3],[1]]],"fresh":1,'
    '"results":[["Float",[3],[1],0]]},'
    '{"op":"aten::cos","args":[["t",1,0,"Float",[3],[1]]],"fresh":2,'
    '"results":[["Float",[3],[1],0]]}]}'
)


def test_a_fault_in_a_lowering_is_no_missing_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tiny import values
    from torch_tiny.engine.compile import compile_trace

    original = values.lower

    def faulty(op: str, *args: Any, **kwargs: Any) -> Any:
        if op == "aten::cos":
            raise IndexError("a fault")
        return original(op, *args, **kwargs)

    monkeypatch.setattr(values, "lower", faulty)
    plan = compile_trace(TRACE).plan
    assert plan.failed == [(1, "aten::cos: IndexError: a fault")]
    assert [region.calls for region in plan.regions] == [[0]]


def test_a_region_that_gcc_finds_no_end_of_is_given_up_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch_tiny.engine import codegen
    from torch_tiny.engine.compile import compile_trace

    endless = ("sh", "-c", "while :; do :; done", "-x")
    monkeypatch.setattr(codegen, "GCC_CPU_SECONDS", 1)
    monkeypatch.setattr(codegen, "GCC", endless)
    plan = compile_trace(TRACE).plan
    assert plan.failed == [(0, "sin_cos: gcc did not end within 1 s of processor time")]
    assert not plan.regions


def test_a_failed_call_is_counted_at_its_line() -> None:
    out = python(
        """
        import torch, torch_tiny
        from torch_tiny.engine.service import Counts
        counts = Counts()
        from torch_tiny.engine.plan import Plan
        made = Plan([], [], {}, [(1, "aten::cos: IndexError: a fault")])
        counts.note_plan(made, ["a.py:1", "b.py:2"])
        print(counts.failures, *torch_tiny.report().failures)
        """,
        provokes="aten::cos: IndexError: a fault",
    )
    assert out.startswith("1 Failure(kind='compile'")
    assert "where='b.py:2', count=1" in out


def test_failures_may_be_told_while_they_are_listed() -> None:
    """The main thread tells between two of its steps, also while it holds the log's lock."""
    from torch_tiny.failures import _Log

    log = _Log()
    listed = threading.Event()

    def list_twice() -> None:
        with log._lock:
            log.all()
        listed.set()

    threading.Thread(target=list_twice, daemon=True).start()
    assert listed.wait(20)


@pytest.mark.provokes("compile")
@pytest.mark.filterwarnings("ignore::torch_tiny.failures.FailureWarning")
def test_the_thread_that_compiles_outlives_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tiny.engine import service
    from torch_tiny.engine.settings import Settings

    engine = service.Engine(Settings("auto", False, None))
    jobs: list[Any] = [(99, 0, "", ["a.py:1"]), RuntimeError("no job"), None]

    def next_job(_: float) -> Any:
        job = jobs.pop(0)
        if not jobs:
            engine._ends.set()
        if isinstance(job, Exception):
            raise job
        return job

    core = SimpleNamespace(next_job=next_job, device_host=service._C.device_host)
    monkeypatch.setattr(service, "_C", core)
    monkeypatch.setattr(service, "_POLL", 0)
    engine._serve(is_first=True)
    assert not jobs
    assert engine.counts.waiting == 0
    assert engine.counts.failures == 1  # there is no device 99
    assert any("no job" in failure.reason for failure in failures.listed())


def test_a_report_needs_no_tinygrad_and_bears_new_notes_meanwhile() -> None:
    python(
        """
        import sys, threading
        sys.modules["tinygrad"] = None
        import torch, torch_tiny
        from torch_tiny.engine import service
        sys.setswitchinterval(1e-5)
        notes = service.engine.counts.not_lowered
        notes.update((f"old{i}", "") for i in range(20_000))
        done = threading.Event()
        def note():
            while not done.is_set():
                notes.update(new="")
                notes.pop("new")
        thread = threading.Thread(target=note)
        thread.start()
        try:
            for _ in range(10):
                assert len(torch_tiny.report().not_lowered) >= 20_000
        finally:
            done.set()
            thread.join()
        assert sys.modules["tinygrad"] is None
        """,
        TORCH_TINY_ENGINE="auto",
    )


def test_a_compile_under_way_is_reported_but_not_in_a_forked_child() -> None:
    """One that takes minutes is not to look as if nothing were compiled."""
    out = python(
        """
        import os, threading, torch, torch_tiny
        from torch_tiny.engine import service
        from torch_tiny.engine.plan import Made, Plan
        asked, answered = threading.Event(), threading.Event()
        def compile(*_):
            asked.set()
            answered.wait(60)
            return Made(Plan([], [], {}, []), {})
        service.engine.workers.compile = compile
        x = torch.ones(9, device="tiny")
        for _ in range(4):
            x.sin().cpu()
        assert asked.wait(60)
        child = os.fork()
        if child == 0:
            counts = service.engine.counts
            os._exit(counts.seconds_compiling > 0 or counts.waiting)
        assert os.waitpid(child, 0)[1] == 0
        under_way = [torch_tiny.report().seconds_compiling for _ in range(2)]
        answered.set()
        print(0 < under_way[0] < under_way[1])
        """,
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_CACHE="",
    )
    assert out == "True\n"


def test_a_warning_that_is_an_error_reaches_the_main_thread() -> None:
    python(
        """
        import threading, time, warnings, torch
        from torch_tiny import failures
        warnings.simplefilter("error")
        try:
            threading.Thread(target=failures.note, args=("compile", "a fault", "a.py:1")).start()
            end = time.monotonic() + 60
            while time.monotonic() < end:
                pass
        except failures.FailureWarning as warning:
            assert "a fault" in str(warning)
        else:
            raise AssertionError("no warning")
        """
    )


def test_a_trace_that_finds_no_room_is_offered_again() -> None:
    python(
        """
        import torch, torch_tiny
        from torch_tiny import _C

        def play(size):
            for _ in range(4):
                torch.ones(size, device="tiny").mul(2).sum().item()

        def waiting():
            jobs = []
            while (job := _C.next_job(0)) is not None:
                jobs.append(job)
            return jobs

        _C.set_mode("auto")  # and nobody takes the jobs
        for size in range(1, 71):
            play(size)
        late = torch_tiny.report().postponed
        assert late >= 6, late
        assert len(waiting()) == 64
        for size in range(65, 71):
            play(size)
        assert len(waiting()) == 6
        """,
        TORCH_TINY_ENGINE="aten",
    )


@pytest.mark.provokes("relayout")
def test_a_result_in_another_layout_is_told(recwarn: pytest.WarningsRecorder) -> None:
    import torch_tiny

    strides = iter([(3, 1), (3, 1), (1, 2), (3, 1)])

    @torch.library.custom_op("test_failures::fickle", mutates_args=(), device_types="cpu")
    def fickle(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(x.shape, next(strides)).copy_(x)

    @fickle.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(x.shape, (3, 1), device=x.device)

    x = torch.ones(2, 3, device="tiny")
    for _ in range(4):
        y = torch.ops.test_failures.fickle(x)
        assert y.stride() == (3, 1)
        assert y.sum().item() == 6
    (failure,) = (f for f in torch_tiny.report().failures if f.kind == "relayout")
    assert "test_failures::fickle" in failure.reason
    assert "test_failures.py" in failure.where
    assert any("a result had to be copied" in str(warning.message) for warning in recwarn)
