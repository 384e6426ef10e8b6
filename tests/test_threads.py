"""Threads that meet at the device, and errors where nobody can be told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, no_device_asserts, python
from torch import Tensor
from torch.nn import functional as F
from util import KIND, ORACLE, assert_same

SECONDS = 60.0


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in another thread while the block runs, once at least."""
    done, begun = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            while not done.is_set():
                work()
                begun.set()
        except BaseException as error:
            errors.append(error)
        begun.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        assert begun.wait(SECONDS)
        yield
    finally:
        done.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert not errors, errors


def test_a_tensor_dropped_while_its_trace_is_cut_off_does_not_spoil_the_plan(device: str) -> None:
    races, length = 60, 1200
    meet = threading.Barrier(2)
    dropped: list[Tensor] = []

    def record(x: Tensor) -> tuple[list[Tensor], Tensor]:
        first = [x * (i + 1.5) for i in range(4)]
        for _ in range(length):
            x = x + 1
        return first, x

    def drop() -> None:
        for race in range(races):
            meet.wait()
            for _ in range(40 * race):  # some of these end while the plan is made
                pass
            dropped.clear()
            meet.wait()

    record(torch.ones(1, device=device))  # the first call of a kind is not recorded
    thread = threading.Thread(target=drop)
    thread.start()
    wrong = 0
    for race in range(races):
        x = torch.ones(races, device=device)[race : race + 1]  # another place is another plan
        dropped[:], last = record(x)
        meet.wait()
        torch.tiny.synchronize()
        meet.wait()
        kept, last = record(x)
        wrong += [t.item() for t in kept] != [1.5, 2.5, 3.5, 4.5]
        wrong += last.item() != length + 1
    thread.join()
    assert wrong == 0


def test_draws_of_other_threads_are_their_own(device: str) -> None:
    x = torch.ones(10_000, device=device)
    torch.manual_seed(0)
    expected = torch.stack([torch.rand(64) for _ in range(10_000)])
    torch.manual_seed(0)
    with meanwhile(lambda: F.dropout(x, 0.5).sum().item()):
        drawn = torch.stack([torch.rand(64) for _ in range(10_000)])
    assert_same(drawn, expected)


@pytest.mark.skipif(ORACLE != "cpu" or KIND != "cpu", reason="the CPU's own numbers")
def test_hidden_draws_are_the_cpus(device: str) -> None:
    def draw(where: str) -> list[Tensor]:
        x = torch.ones(50, device=where)
        torch.manual_seed(3)
        drawn = [F.dropout(x, 0.5), F.alpha_dropout(x, 0.3, training=True), torch.rand_like(x)]
        q = torch.ones(1, 2, 8, 4, device=where)
        drawn.append(F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
        return [*drawn, F.dropout(x, 0.1), torch.randperm(20, device=where)]

    for _ in range(3):
        for got, expected in zip(draw(device), draw(ORACLE), strict=True):
            assert got.tolist() == expected.tolist()


def test_metrics_while_others_record(device: str) -> None:
    x = torch.ones(3, device=device)

    def record() -> None:
        for _ in range(50):
            torch.addcmul(x, x, x, out=x.clone()).zero_().clamp_(0, 1)
        x.sum().item()

    with meanwhile(record), meanwhile(record):
        for _ in range(400):
            torch.tiny.metrics()


@needs_tiny
def test_a_throw_beside_the_kernels_marks_the_results() -> None:
    out = python(
        """
        import torch, torch_tiny
        from torch_tiny import _C
        x = torch.ones(3, device="tiny")
        x + 1  # the first call of a kind is not recorded
        _C.set_compile_now(lambda *job: 3)  # not a string
        y = x + 1
        for _ in range(2):
            try:
                print(y.tolist())
            except RuntimeError as error:
                print("raised")
        _C.set_compile_now(lambda *job: "no")
        print(x.tolist())
        """,
        TORCH_TINY_ENGINE="uop",
    )
    assert out.splitlines() == ["raised", "raised", "[1.0, 1.0, 1.0]"]


@needs_tiny
@no_device_asserts
def test_an_error_beside_a_warning_that_is_one_does_not_end_the_process() -> None:
    out = python("""
        import torch, warnings
        from torch_tiny import _C
        x = torch.zeros(4, device="tiny")
        index = torch.tensor([1], device="tiny")
        source = torch.zeros(1, device="tiny")
        x.put_(index, source); x[index]; torch.tiny.synchronize()
        torch.use_deterministic_algorithms(True, warn_only=True)
        x.put_(index, source)
        x[index + 100]
        warnings.simplefilter("error")
        try:
            torch.tiny.synchronize()
        except Exception as error:
            print(type(error).__name__)
        print(x.tolist())
    """)
    assert out.splitlines()[-1] == "[0.0, 0.0, 0.0, 0.0]"
    assert out.splitlines()[0] in ("IndexError", "UserWarning")


@needs_tiny
@no_device_asserts
def test_an_error_found_where_an_operator_is_deregistered_is_told_later() -> None:
    out = python("""
        import torch
        library = torch.library.Library("mine", "DEF")
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
        library.impl("same", lambda x: x.clone(), "CPU")
        x = torch.zeros(4, device="tiny")
        index = torch.tensor([1], device="tiny")
        torch.ops.mine.same.default(x); x[index]; torch.tiny.synchronize()
        torch.histc(x)
        late = x[index + 100]
        del torch.ops.mine
        library._destroy()
        for read in (torch.tiny.synchronize, late.tolist):
            try:
                read()
            except IndexError:
                print("told")
        print(x.tolist())
    """)
    assert out.splitlines()[-1] == "[0.0, 0.0, 0.0, 0.0]"
    assert "told" in out.splitlines()


@needs_tiny
def test_a_stream_is_busy_while_another_thread_runs(device: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    go_on.set()

    def kernel(x: Tensor) -> Tensor:
        begun.set()
        assert go_on.wait(SECONDS)
        return x.clone()

    library = torch.library.Library("tiny_threads", "DEF")
    library.define("wait(Tensor x) -> Tensor")
    library.impl("wait", kernel, ORACLE.upper())
    library.impl("wait", torch.empty_like, "Meta")
    wait = torch.ops.tiny_threads.wait.default
    x = torch.ones(3, device=device)
    wait(x)  # the first call of a kind is not recorded
    torch.tiny.synchronize()
    stream = torch.accelerator.current_stream()
    assert stream.query()
    begun.clear()
    go_on.clear()
    y = wait(x)
    assert not stream.query()
    thread = threading.Thread(target=torch.tiny.synchronize)
    thread.start()
    assert begun.wait(SECONDS)
    assert not stream.query()
    go_on.set()
    thread.join()
    assert stream.query()
    assert y.tolist() == [1, 1, 1]
    library._destroy()


@pytest.mark.skipif(KIND != "cuda", reason="only there a thread runs what was recorded")
def test_a_forked_child_does_not_wait_for_a_thread_it_does_not_have() -> None:
    out = python("""
        import os, sys, torch
        from torch_tiny import _C
        x = torch.ones(1000, 1000, device="tiny")
        def step():
            y = x
            for _ in range(50):
                y = (y @ x).tanh()
            return y
        for _ in range(4):
            step(); _C.run(0, "test")
        torch.tiny.synchronize()
        for _ in range(10):
            step(); _C.run(0, "test")
            if (child := os.fork()) == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        print("done")
    """)
    assert out.split() == ["done"]


@pytest.mark.skipif(KIND != "cuda", reason="only there readers do not take turns")
def test_a_reader_waits_for_a_trace_that_another_thread_runs(device: str) -> None:
    x = torch.full((500, 500), 1e-3, device=device)
    expected = (x @ x).cpu()
    for _ in range(100):
        first = [x @ x for _ in range(20)]
        thread = threading.Thread(target=torch.tiny.synchronize)
        thread.start()
        for y in first:
            assert torch.equal(y.cpu(), expected)
        thread.join()


@needs_cpu_memory
def test_denormals_are_flushed_as_when_the_call_was_recorded(device: str) -> None:
    def program(where: str) -> list[list[float]]:
        x = torch.full((5,), 1e-39, device=where)
        torch.set_flush_denormal(True)
        flushed = x * 1.0
        torch.set_flush_denormal(False)
        kept = x * 1.0
        torch.set_flush_denormal(True)
        again = x * 1.0
        torch.set_flush_denormal(False)
        return [t.tolist() for t in (flushed, kept, again)]

    for _ in range(3):
        assert program(device) == program(ORACLE)
        assert torch.tensor([1e-39]).mul(1).item() != 0


def test_deterministic_algorithms_are_asked_for_when_a_call_is_recorded(device: str) -> None:
    x = torch.zeros(3, device=device)
    index, source = torch.tensor([1], device=device), torch.ones(1, device=device)
    x.put_(index, source)
    x.zero_()
    torch.tiny.synchronize()
    x.put_(index, source)  # allowed here, and still to run there
    torch.use_deterministic_algorithms(True)
    try:
        x + 1
        assert torch.are_deterministic_algorithms_enabled()
        with pytest.raises(RuntimeError, match="deterministic"):
            x.put_(index, source)
            torch.use_deterministic_algorithms(False)
            torch.tiny.synchronize()
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.tolist() == [0, 1, 0]


def test_threads_that_ask_for_the_state_of_random_numbers_do_not_wait_for_each_other() -> None:
    """PyTorch asks with the generator locked; what was recorded then runs without the GIL."""
    out = python("""
        import threading, torch, torch_tiny
        x = torch.ones(100, 100, device="tiny")
        def work():
            for _ in range(100):
                (x @ x).sin()
                state = torch.tiny.get_rng_state()
                (x @ x).sin()
                torch.tiny.set_rng_state(state)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state = torch.tiny.get_rng_state()
        first = torch.rand(3, device="tiny")
        torch.tiny.set_rng_state(state)
        print(torch.equal(first, torch.rand(3, device="tiny")))
    """)
    assert out.split() == ["True"]


def test_a_copy_between_devices_beside_a_kernel_on_one_that_uses_the_other() -> None:
    out = python(
        """
        import threading, torch, torch_tiny
        @torch.library.custom_op("test::across", mutates_args=(), device_types="cpu")
        def across(x: torch.Tensor) -> torch.Tensor:
            return x + (torch.ones(3, device="tiny:0") + 1).sum().item()
        across.register_fake(torch.empty_like)
        a, b = torch.ones(3, device="tiny:0"), torch.ones(3, device="tiny:1")
        done = threading.Event()
        def copy():
            while not done.is_set():
                assert a.to("tiny:1").tolist() == [1, 1, 1]
        thread = threading.Thread(target=copy)
        thread.start()
        for _ in range(300):
            assert across(b).tolist() == [7, 7, 7]
        done.set()
        thread.join()
        """,
        TORCH_TINY_DEVICES="cpu,cpu",
    )
    assert out == ""


def test_a_switch_that_is_set_and_reset_between_steps_stays_as_it_is(device: str) -> None:
    x = torch.ones(4, 4, device=device)
    before = torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark
    for _ in range(3):
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(benchmark=True):
            y = x @ x
        z = x @ x
        assert (y + z).tolist() == [[8.0] * 4] * 4
        assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark) == before
