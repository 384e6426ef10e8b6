"""PyTorch's switches, which are the whole process's, while traces of others run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import needs_cpu_memory, needs_tiny, python
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from util import KIND

pytestmark = needs_tiny
SECONDS = 60.0

MakeOperator = Callable[[Callable[[], None]], Callable[[Tensor], Tensor]]


@pytest.fixture
def kernel() -> Iterator[MakeOperator]:
    """An operator whose kernel calls what it was made with, while its trace runs."""
    library = torch.library.Library("switches", "DEF")
    library.define("call(Tensor x) -> Tensor")
    body: list[Callable[[], None]] = []

    def run(x: Tensor) -> Tensor:
        body[-1]()
        return x + 1

    library.impl("call", run, KIND.upper())
    library.impl("call", torch.empty_like, "Meta")

    def make(called: Callable[[], None]) -> Callable[[Tensor], Tensor]:
        body[:] = [lambda: None]
        torch.ops.switches.call(torch.ones(3, device="tiny"))  # the first call is not recorded
        body[:] = [called]
        return torch.ops.switches.call  # type: ignore[no-any-return]

    yield make
    library._destroy()


def test_what_another_thread_sets_while_a_trace_runs_stays_set(kernel: MakeOperator) -> None:
    running, is_set = threading.Event(), threading.Event()
    seen = []

    def body() -> None:
        running.set()
        assert is_set.wait(SECONDS)
        seen.append(torch.are_deterministic_algorithms_enabled())

    def other() -> None:
        assert running.wait(SECONDS)
        torch.backends.mkldnn.set_flags(False)
        is_set.set()

    call = kernel(body)
    thread = threading.Thread(target=other)
    thread.start()
    torch.use_deterministic_algorithms(True)
    try:
        y = call(torch.ones(3, device="tiny"))
    finally:
        torch.use_deterministic_algorithms(False)
    try:
        assert y.tolist() == [2, 2, 2]
        thread.join(SECONDS)
        assert seen == [True]
        assert not torch.backends.mkldnn.enabled
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.backends.mkldnn.set_flags(True)


def test_choosing_an_attention_does_not_cut_a_trace(device: str) -> None:
    q = torch.randn(1, 2, 8, 8, device=device)
    weight = torch.randn(8, 8, device=device)

    def layers() -> float:
        x = q
        for _ in range(3):
            with sdpa_kernel(SDPBackend.MATH):
                x = scaled_dot_product_attention(x, x, x) @ weight
        return x.sum().item()

    layers()
    layers()
    before = torch.tiny.metrics()["traces"]
    layers()
    assert torch.tiny.metrics()["traces"] == before + 1


@needs_cpu_memory
def test_a_backward_pass_flushes_denormals_as_its_caller_does() -> None:
    """On the CPU it runs on the caller's thread, here on one of autograd's."""
    out = python("""
        import torch
        x = torch.full((4,), 1e-30, device="tiny", requires_grad=True)
        def step():
            (x * 1e-5).sum().backward()
            result, x.grad = x.grad * 1e-36, None
            return result.tolist()[0]
        step()  # autograd's threads are there now
        torch.set_flush_denormal(True)
        step()
        before = torch.tiny.metrics()["traces"]
        print(step(), torch.tiny.metrics()["traces"] - before)
        """)
    assert out.split() == ["0.0", "1"]


TWO_DEVICES = """
    import threading, torch
    SECONDS = 60.0
    library = torch.library.Library("switches", "DEF")
    library.define("call(Tensor x) -> Tensor")
    kernels = {}
    library.impl("call", lambda x: kernels[x.numel()]() or x + 1, "CPU")
    library.impl("call", torch.empty_like, "Meta")
    kernels.update({3: lambda: None, 4: lambda: None})
    x, y = torch.ones(3, device="tiny:0"), torch.ones(4, device="tiny:1")
    def both():
        return torch.ops.switches.call(x), torch.ops.switches.call(y)
    for one in both():
        one.tolist()
    def read(tensor):
        thread = threading.Thread(target=tensor.tolist)
        thread.start()
        return thread
    """


@needs_cpu_memory
@pytest.mark.parametrize("first", [False, True])
def test_runs_of_other_devices_do_not_change_each_others_switches(first: bool) -> None:
    """One is recorded with a switch on, one with it off; they run at the same time."""
    code = f"""
    seen, running, other = {{}}, threading.Event(), threading.Event()
    def kernel_of_the_first():
        running.set()
        other.wait(0.3)  # which cannot come before this one ends
        seen["first"] = torch.are_deterministic_algorithms_enabled()
    def kernel_of_the_second():
        other.set()
        seen["second"] = torch.are_deterministic_algorithms_enabled()
    kernels.update({{3: kernel_of_the_first, 4: kernel_of_the_second}})
    torch.use_deterministic_algorithms({first})
    a = torch.ops.switches.call(x)
    torch.use_deterministic_algorithms({not first})
    b = torch.ops.switches.call(y)
    torch.use_deterministic_algorithms(False)
    threads = [read(a)]
    assert running.wait(SECONDS)
    threads.append(read(b))
    for thread in threads:
        thread.join()
    print(seen["first"], seen["second"], torch.are_deterministic_algorithms_enabled())
    """
    out = python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split() == [str(first), str(not first), "False"]


@needs_cpu_memory
def test_a_kernel_may_use_another_device_while_that_one_wants_to_run() -> None:
    code = """
    running, others_turn = threading.Event(), threading.Event()
    def kernel():
        running.set()
        others_turn.wait(SECONDS)
        (torch.ones(4, device="tiny:1") + 1).sum().item()
    kernels[3] = kernel
    torch.use_deterministic_algorithms(True)
    a = torch.ops.switches.call(x)
    torch.use_deterministic_algorithms(False)
    b = y + 1
    first = read(a)
    assert running.wait(SECONDS)
    second = read(b)
    others_turn.set()
    first.join(SECONDS), second.join(SECONDS)
    print(first.is_alive(), second.is_alive(), a.tolist(), b.tolist())
    """
    out = python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split("\n")[0] == "False False [2.0, 2.0, 2.0] [2.0, 2.0, 2.0, 2.0]"


INTEGERS_TO_FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda x: x / 3,
    "function": lambda x: x.sin(),
    "number": lambda x: x * 0.1 + x**0.5,
    "complex": lambda x: x * 0.1j,
    "list": lambda x: torch._foreach_div([x], 3)[0],
    "made": lambda x: torch.linspace(0, 1, 7, device=x.device) / x.sum(),
}


@pytest.mark.parametrize("name", INTEGERS_TO_FLOATS)
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_default_type_that_is_set_and_reset(name: str, is_seen: bool) -> None:
    """It is the one of when a call was recorded. is_seen: whether we hear of it being set."""
    set_type = torch._C._set_default_dtype
    set_type = set_type if is_seen else set_type.__wrapped__  # type: ignore[attr-defined]
    program = INTEGERS_TO_FLOATS[name]
    for _ in range(4):
        for dtype in (torch.float64, torch.float32):
            try:
                set_type(dtype)
                expected = program(torch.arange(1, 5))
                found = program(torch.arange(1, 5).to("tiny"))
            finally:
                set_type(torch.float32)
            assert found.cpu().equal(expected)


@needs_cpu_memory
def test_a_default_type_is_not_seen_by_threads_that_record() -> None:
    """While a run has to set another one."""
    code = """
    running, has_recorded = threading.Event(), threading.Event()
    set_type = torch._C._set_default_dtype.__wrapped__
    def kernel():
        running.set()
        assert has_recorded.wait(SECONDS)
    set_type(torch.float64)
    torch.ops.switches.call(x).tolist()  # the first call of its kind is not recorded
    set_type(torch.float32)
    kernels[3] = kernel
    integers = torch.arange(1, 5).to("tiny:1")
    (integers / 3).tolist(), integers.sin().tolist()
    set_type(torch.float64)
    a = torch.ops.switches.call(x)
    set_type(torch.float32)
    reader = read(a)
    assert running.wait(SECONDS)
    seen = torch.get_default_dtype()
    found = [integers / 3, integers.sin()]
    has_recorded.set()
    reader.join(SECONDS)
    print(seen, *{one.dtype for one in found}, torch.get_default_dtype())
    print(found[0].cpu().equal(torch.arange(1, 5) / 3))
    """
    out = python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split() == ["torch.float64", "torch.float32", "torch.float32", "True"]


@needs_cpu_memory
@pytest.mark.parametrize("recorded", ["float32", "float64"])
def test_a_default_type_that_a_kernel_sets(recorded: str) -> None:
    """It is the program's from then on, though the run it is set in has switches of its own."""
    code = f"""
    running, has_recorded = threading.Event(), threading.Event()
    def kernel():
        torch.set_default_dtype(torch.float64)
        running.set()
        assert has_recorded.wait(SECONDS)
    unseen = torch._C._set_default_dtype.__wrapped__
    integers = torch.arange(1, 5).to("tiny:1")
    for dtype in (torch.float64, torch.float32, torch.{recorded}):
        unseen(dtype)
        (integers / 3).tolist()
        torch.use_deterministic_algorithms(True)
        torch.ops.switches.call(x).tolist()  # the first call of its kind is not recorded
        torch.use_deterministic_algorithms(False)
    kernels[3] = kernel
    torch.use_deterministic_algorithms(True)
    a = torch.ops.switches.call(x)
    torch.use_deterministic_algorithms(False)
    unseen(torch.float32)
    reader = read(a)
    assert running.wait(SECONDS)
    found = integers / 3
    has_recorded.set()
    reader.join(SECONDS)
    print(found.dtype, torch.get_default_dtype(), (integers / 3).dtype)
    """
    out = python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split() == ["torch.float64"] * 3


@needs_cpu_memory
@pytest.mark.parametrize("begins", ["before", "between"])
def test_a_default_type_is_set_while_a_run_begins_or_ends(begins: str) -> None:
    """Between setting it and our hearing of that."""
    code = f"""
    from torch_tiny import _C
    running, may_end = threading.Event(), threading.Event()
    def kernel():
        running.set()
        assert may_end.wait(SECONDS)
    unseen = torch._C._set_default_dtype.__wrapped__
    def called_under(dtype):
        torch.set_default_dtype(dtype)
        a = torch.ops.switches.call(x)
        unseen(torch.float32)
        return a
    called_under(torch.float64).tolist()  # the first call of its kind is not recorded
    kernels[3] = kernel
    if "{begins}" == "before":
        reader = read(called_under(torch.float64))
        assert running.wait(SECONDS)
        unseen(torch.float64)
        may_end.set()
        reader.join(SECONDS)
        _C.default_type_was_set(torch.float64)
    else:
        a = called_under(torch.float32)
        unseen(torch.float64)
        reader = read(a)
        assert running.wait(SECONDS)
        _C.default_type_was_set(torch.float64)
        may_end.set()
        reader.join(SECONDS)
    print(torch.get_default_dtype(), (torch.arange(3).to("tiny:1") / 3).dtype)
    """
    out = python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split() == ["torch.float64"] * 2


@needs_cpu_memory
def test_a_signal_that_comes_while_the_default_type_is_set() -> None:
    """Its handler records: nothing that waits for it may be held then."""
    code = """
    import signal
    signal.signal(signal.SIGALRM, lambda *_: torch.ones(3, device="tiny") + 1)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    for i in range(3000):
        torch.set_default_dtype((torch.float64, torch.float32)[i % 2])
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        torch.set_default_dtype(torch.int32)
    except TypeError:
        print(torch.get_default_dtype(), (torch.arange(3).to("tiny") / 3).dtype)
    """
    assert python(TWO_DEVICES + code, TORCH_TINY_DEVICES="cpu,cpu").split() == ["torch.float32"] * 2


@needs_cpu_memory
def test_kernels_of_two_devices_set_the_default_type() -> None:
    """Each has the right to run on its own device, and must not wait for that of the other."""
    code = """
    both = threading.Barrier(2)
    def kernel():
        both.wait(SECONDS)
        torch.set_default_dtype(torch.float64)
    kernels.update({3: kernel, 4: kernel})
    threads = [read(torch.ops.switches.call(x)), read(torch.ops.switches.call(y))]
    for thread in threads:
        thread.join(SECONDS)
    print(*(thread.is_alive() for thread in threads), torch.get_default_dtype())
    os._exit(0)
    """
    out = python(TWO_DEVICES + "import os" + code, TORCH_TINY_DEVICES="cpu,cpu")
    assert out.split() == ["False", "False", "torch.float64"]
