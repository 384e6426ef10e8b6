"""Portable devices under stress: threads, forks, the end of the process, full memory, bad disks."""

import hashlib
from pathlib import Path

import pytest
from harness import needs_cpu_memory, needs_tiny, on_portable, why_no_portable

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes

NO_DRIVERS = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "OCL_ICD_VENDORS"), "/nowhere")

THREADS = """
import threading

def in_threads(*bodies):
    results, errors, start = [None] * len(bodies), [], threading.Barrier(len(bodies))
    def work(i):
        try:
            start.wait()
            results[i] = bodies[i]()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results

def program(seed, device, steps=12):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).to(device)
    for step in range(steps):
        x = torch.tanh(x @ x.T) + step % 3
        x[seed % 4] += 1
        if step % 4 == seed % 4:
            x.sum().item()
    return x.cpu()
"""


def test_threads_on_one_device(portable: str) -> None:
    code = """
for seed, result in enumerate(in_threads(*(lambda i=i: program(i, "tiny") for i in range(3)))):
    torch.testing.assert_close(result, program(seed, "cpu"))
shared, table = torch.zeros(3, device="tiny"), torch.zeros(3, 8, device="tiny")
def count(i):
    for step in range(8):
        table[i, step] = step
        shared[i] += 1
in_threads(*(lambda i=i: count(i) for i in range(3)))
print(shared.tolist(), table.cpu().equal(torch.arange(8.0).expand(3, 8)))
def train(seed, device):
    w = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)).to(device).requires_grad_()
    for _ in range(4):
        (w @ w).square().mean().backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
            w.grad = None
    return w.detach().cpu()
for seed, result in enumerate(in_threads(*(lambda i=i: train(i, "tiny") for i in range(2)))):
    torch.testing.assert_close(result, train(seed, "cpu"))
"""
    assert on_portable(portable, THREADS + code) == ["[8.0, 8.0, 8.0] True"]


@pytest.mark.parametrize("devices", ["cpu,cl", "cpu,webgpu", "cl,cl", "webgpu,webgpu", "cl,webgpu"])
def test_threads_on_two_devices(devices: str) -> None:
    """Each compiles, runs and copies to the other, both ways at a time."""
    for kind in {*devices.split(",")} - {"cpu"}:
        if reason := why_no_portable(kind):
            pytest.skip(f"no {kind}: {reason}; see make devices")
    code = """
def both_ways(i):
    mine, other = f"tiny:{i}", f"tiny:{1 - i}"
    x = torch.arange(6.0, device=mine)
    for _ in range(5):
        x = (x.to(other) * 2).to(mine) + 1
    return x.cpu()
first, second = in_threads(lambda: program(0, "tiny:0"), lambda: program(1, "tiny:1"))
torch.testing.assert_close(first, program(0, "cpu"))
torch.testing.assert_close(second, program(1, "cpu"))
for x in in_threads(lambda: both_ways(0), lambda: both_ways(1)):
    assert x.equal(torch.arange(6.0) * 32 + 31), x
"""
    assert on_portable(devices, THREADS + code) == []


def test_fork_after_use_is_refused(portable: str) -> None:
    code = """
import os
x = torch.ones(3, device="tiny") + 1
x.cpu()
y = x * 2
for use in ('torch.ones(3, device="tiny")', "x + 1", "x.cpu()", "x.sum().item()", "print(x)",
            "torch.tiny.synchronize()", "x.add_(1)", "x.nonzero()", 'torch.ones(3).to("tiny")',
            "torch.rand(3, device='tiny')", "torch_tiny.to_tinygrad(x)"):
    child = os.fork()
    if child == 0:
        try:
            exec(use)
            print(use, "worked", flush=True)
        except RuntimeError as error:
            print("refused" if "fork" in str(error) else error, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(y.tolist())
"""
    *said, parent = on_portable(portable, code)
    assert said == ["refused"] * 11
    assert parent == "[4.0, 4.0, 4.0]"


def test_a_forked_child_that_leaves_the_device_alone_ends_well(portable: str) -> None:
    code = """
import multiprocessing
x = torch.ones(3, device="tiny") + 1
x.cpu()
def work(queue):
    queue.put(torch.ones(3).sum().item())
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=work, args=(queue,))
child.start()
print(queue.get())
child.join()
print(child.exitcode, (x + 1).tolist())
"""
    assert on_portable(portable, code) == ["3.0", "0 [3.0, 3.0, 3.0]"]


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "torch.tiny._C.run(0, 'now')",
        "import sys; sys.exit(0)",
        "w.requires_grad_(); (w * x).sum().backward()",
        "import tinygrad; t = torch_tiny.to_tinygrad(x); t += 1; t.realize()",
        "class Late:\n    def __del__(self): self.t.add_(1)\nlate = Late(); late.t = x",
    ],
)
def test_exit_right_after_work(portable: str, ending: str) -> None:
    """Nothing waits for what was recorded, nor for what runs."""
    code = "x = torch.ones(300, 300, device='tiny')\nw = x * 2\ny = w @ x + 1\nx.mul_(2)\n"
    assert on_portable(portable, code + ending) == []


def test_memory_runs_out(portable: str) -> None:
    """As on a GPU of PyTorch's: torch.OutOfMemoryError, and the device goes on.

    What was asked for in the same breath has happened all the same.
    """
    code = """
def message(f):
    try:
        f()
        torch.tiny.synchronize()
    except torch.OutOfMemoryError as error:
        return str(error).splitlines()[0]
large, kept = 1 << 38, []
for f in (lambda x: kept.append(x[:1].expand(large) + 1),
          lambda x: kept.append(torch.zeros(large, dtype=torch.uint8, device="tiny")),
          lambda x: kept.append(x.repeat(large)),
          lambda x: kept.append(torch.full((large,), 3, device="tiny", dtype=torch.int8) + 1)):
    x = torch.ones(4, device="tiny")
    y = x * 2
    x[0] = 5
    print(message(lambda: f(x)))
    assert x.tolist() == [5, 1, 1, 1] and y.tolist() == [2] * 4, (x, y)
    assert (x + y).tolist() == [7, 3, 3, 3]
for result in kept:
    print(message(lambda: result[:3].tolist()))
"""
    said = on_portable(portable, code)
    assert len(said) >= 5
    for line in said:
        assert "out of memory" in line
        assert f"tiny:0 ({portable})" in line


def test_webgpu_has_small_buffers() -> None:
    """Where only a buffer is too large, and neither the memory nor its neighbours."""
    if reason := why_no_portable("webgpu"):
        pytest.skip(f"no webgpu: {reason}; see make devices")
    code = """
from torch_tiny.uops import webgpu
from torch_tiny.portable.service import engine
x = torch.ones(1000, device="tiny")
x.sum().item()
engine._devices[0].opened._most_bytes = 8000
y = x * 2
z = torch.cat([x, x, x])
w = z.sum()
x += 1
for f in (torch.tiny.synchronize, z.tolist, w.item):
    try:
        f()
        print("no error")
    except torch.OutOfMemoryError as error:
        print("8000 bytes" in str(error))
print(y.sum().item(), x.sum().item(), (x * 3).sum().item())
"""
    assert on_portable("webgpu", code) == ["True", "True", "True", "2000.0 2000.0 6000.0"]


def test_a_driver_that_is_not_there(portable: str) -> None:
    """Nothing runs on the host in its place, and nothing is read that was never written."""
    code = """
x = torch.ones(3, device="tiny")
for read in ((x + 1).tolist, x.tolist, (x * 2).tolist):
    try:
        print(read())
    except RuntimeError as error:
        print("could be opened" in str(error), "install" in str(error))
print(torch.ones(3).to("tiny").cpu().tolist())
"""
    found = on_portable(portable, code, **NO_DRIVERS)
    assert found == ["True True"] * 3 + ["[1.0, 1.0, 1.0]"]


def test_the_command_tries_the_devices() -> None:
    code = """
from torch_tiny.cli import info
lines = [line.split() for line in info().splitlines()]
(available,) = (line for line in lines if line[0] == "available")
print(any("cl" in name or "webgpu" in name for name in available))
print(sum(line[0] in ("cl", "webgpu") for line in lines))
"""
    assert on_portable("cpu", code, **NO_DRIVERS) == ["False", "2"]


def test_a_kernel_that_does_not_build(portable: str) -> None:
    """Its calls run on the host, with a warning, and the device goes on."""
    code = """
from torch_tiny.failures import FailureWarning
from torch_tiny.portable.service import engine, FallbackWarning
x = torch.ones(4, device="tiny")
(x + 1).tolist()
opened = engine._devices[0].opened
build = opened.build
opened.build = lambda texts: build([(name, f"{text} nonsense(", n) for name, text, n in texts])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print((x * 5 - 2).tolist())
print({w.category for w in caught} == {FallbackWarning, FailureWarning})
print(all("depends on data" not in str(w.message) for w in caught))
del opened.build
torch.tiny.reset_metrics()
print((x / 4).tolist(), torch.tiny.metrics()["fallbacks"])
"""
    assert on_portable(portable, code, TORCH_TINY_CACHE="") == [
        "[3.0, 3.0, 3.0, 3.0]",
        "True",
        "True",
        "[0.25, 0.25, 0.25, 0.25] []",
    ]


def test_a_launch_that_fails(portable: str) -> None:
    """It raises, and what was asked for has happened: on the host."""
    code = """
from torch_tiny.portable.service import engine
x = torch.ones(4, device="tiny") + 1
x.tolist()
def lost(launches):
    raise RuntimeError("the device is lost")
engine._devices[0].opened.run = lost
y = x * 2
x.add_(1)
try:
    torch.tiny.synchronize()
except RuntimeError as error:
    print("the device is lost" in str(error))
del engine._devices[0].opened.run
print(x.tolist(), y.tolist(), (x + y).tolist())
"""
    assert on_portable(portable, code) == [
        "True",
        "[3.0, 3.0, 3.0, 3.0] [4.0, 4.0, 4.0, 4.0] [7.0, 7.0, 7.0, 7.0]",
    ]


def test_an_interrupt_is_one(portable: str) -> None:
    """Also while a kernel is compiled, run or read; the device goes on."""
    code = """
from torch_tiny.portable.service import engine
x = torch.ones(3, device="tiny")
x.tolist()
def interrupted_once(of, name):
    def interrupted(*args):
        delattr(of, name)
        raise KeyboardInterrupt
    setattr(of, name, interrupted)
here = engine._devices[0]
places = [(engine, "_compile"), (here.opened, "run"), (here.memory, "download")]
for number, (of, name) in enumerate(places, 2):
    interrupted_once(of, name)
    y = x * number
    try:
        print(y.sum().item())
    except KeyboardInterrupt:
        print("interrupted")
    torch.tiny.reset_metrics()
    print((x * number).sum().item(), torch.tiny.metrics()["fallbacks"])
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
device = here.opened.device
synchronize = device.synchronize
def signalled():
    os.kill(os.getpid(), signal.SIGINT)
    synchronize()  # on WebGPU in a callback, where an exception would be lost
device.synchronize = signalled
try:
    print((x * 5).sum().item())
except KeyboardInterrupt:
    print("interrupted")
device.synchronize = synchronize
print((x * 5).sum().item())
"""
    assert on_portable(portable, code, TORCH_TINY_CACHE="") == [
        *(line for number in (2, 3, 4) for line in ("interrupted", f"{number * 3.0} []")),
        *("interrupted", "15.0"),
    ]


PROGRAM = """
from torch_tiny.portable.service import engine
x = torch.arange(6.0).to("tiny")
print((x * 2 + 1).sum().item(), len(torch.tiny.metrics()["fallbacks"]), engine.counts.cache_hits)
"""


def test_a_damaged_cache_is_not_used(portable: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    assert on_portable(portable, PROGRAM, TORCH_TINY_CACHE=folder) == ["36.0 0 0"]
    (plan,) = Path(folder).glob("*.region")
    whole = plan.read_bytes()
    rest = whole.partition(b"\n")[2]
    other = rest.replace(b"kernels", b"colonel")  # sound, but not of our making
    sealed = hashlib.sha256(other).hexdigest().encode() + b"\n" + other
    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b"kernels", b"colonel"), sealed):
        plan.write_bytes(damaged)
        assert on_portable(portable, PROGRAM, TORCH_TINY_CACHE=folder) == ["36.0 0 0"]
    assert on_portable(portable, PROGRAM, TORCH_TINY_CACHE=folder) == ["36.0 0 1"]


def test_a_disk_that_takes_nothing(portable: str, tmp_path: Path) -> None:
    # Drivers want to write files of their own: the disk is full for ours only.
    full = """
import resource, signal
from torch_tiny.engine.cache import PlanFiles
store = PlanFiles._stored
def to_a_full_disk(*given):
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    trouble = store(*given)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return trouble
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
PlanFiles._stored = to_a_full_disk
"""
    for _ in range(2):
        out = on_portable(
            portable, full + PROGRAM, provokes="File too large", TORCH_TINY_CACHE=str(tmp_path)
        )
        assert out == ["36.0 0 0"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for folder in ("/proc/none/of/this", str(tmp_path / "file")):
        out = on_portable(portable, PROGRAM, provokes=folder, TORCH_TINY_CACHE=folder)
        assert out == ["36.0 0 0"]


def test_copies_between_devices(portable: str) -> None:
    """Views, other types, overlapping reads, and without waiting: all as between CPU tensors."""
    code = """
base = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
views = [lambda t: t, lambda t: t.t(), lambda t: t[1::2, ::3], lambda t: t[:, 2],
         lambda t: t[:1].expand(6, 8), lambda t: t.flatten().unfold(0, 4, 2), lambda t: t[:0],
         lambda t: t[3, 4]]
types = [torch.float32, torch.float16, torch.int64, torch.bool]
pairs = [("tiny:0", "tiny:1"), ("tiny:1", "tiny:0"), ("cpu", "tiny:1"), ("tiny:1", "cpu")]
for origin, target in pairs:
    for non_blocking in (False, True):
        for k, view in enumerate(views):
            source = base.clone().to(origin, non_blocking=non_blocking)
            source.mul_(2)
            expected = view(base * 2)
            moved = view(source).to(target, non_blocking=non_blocking)
            source.zero_()
            torch.tiny.synchronize(0), torch.tiny.synchronize(1)
            assert moved.stride() == view(base).to("cpu", copy=True).stride(), (origin, target, k)
            assert moved.cpu().equal(expected), (origin, target, k)
            for dtype in types[k % 2 :: 2]:
                into = torch.zeros(*expected.shape, 3, dtype=dtype, device=target)
                plain = torch.zeros(*expected.shape, 3, dtype=dtype)
                into[..., 1].copy_(view(base).abs().to(origin), non_blocking=non_blocking)
                plain[..., 1].copy_(view(base).abs())
                into.add_(into)
                plain.add_(plain)
                torch.tiny.synchronize(0), torch.tiny.synchronize(1)
                assert into.cpu().equal(plain), (origin, target, k, dtype)
wide = torch.arange(3).to("tiny:1")
wide.copy_(torch.tensor(7).to("tiny:0"))
assert wide.tolist() == [7, 7, 7]
model = torch.nn.Linear(3, 2).to("tiny:0")
x = torch.ones(1, 3)
first = model(x.to("tiny:0")).cpu()
torch.testing.assert_close(model.to("tiny:1")(x.to("tiny:1")).cpu(), first)
w = torch.ones(3, device="tiny:0", requires_grad=True)
(w.to("tiny:1") * torch.arange(3.0, device="tiny:1")).sum().backward()
assert w.grad.device == torch.device("tiny:0") and w.grad.tolist() == [0, 1, 2]
"""
    assert on_portable(f"cpu,{portable}", code) == []
