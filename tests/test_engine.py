"""Hot code is compiled in the background and kept where it is faster; results stay PyTorch's.

Each program runs in a process of its own, with a cache of its own, in the mode it is about.
"""

import hashlib
import textwrap
from pathlib import Path

import pytest
from harness import needs_cpu_memory, needs_tiny, python

pytestmark = [needs_tiny, needs_cpu_memory]

SETTLE = """
import time
import torch
from torch_tiny import _C
from torch_tiny.engine import service

def settled():
    undecided = [r for p in _C.plans(0) for r in p["regions"] if not r["engine"]]
    return service.engine.counts.waiting == 0 and _C.plans(0) and not undecided

def step_until(condition, step, seconds=100):
    end = time.monotonic() + seconds
    while not condition():
        step()
        torch.tiny.synchronize()
        time.sleep(0.001)  # the worker needs a core too
        assert time.monotonic() < end, service.engine.counts
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def auto(code: str, cache: Path, provokes: str = "", **env: str) -> str:
    """Run a program in mode auto, with `step_until` and `settled` at hand."""
    return python(
        SETTLE + textwrap.dedent(code),
        provokes=provokes,
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_CACHE=str(cache),
        **env,
    )


TRAINING = """
torch.manual_seed(0)
def make(device):
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    x, y = torch.randn(16, 32).to(device), torch.randint(4, (16,)).to(device)
    losses = []
    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return step, losses
"""


def test_six_hot_functions_are_six_compiles(cache: Path) -> None:
    """A library of one must never be taken for that of another, also while variants are timed."""
    auto(
        """
for rows, columns in [(2, 3), (64, 100), (128, 7), (1, 1000), (33, 333), (256, 64)]:
    x = torch.randn(rows, columns)
    y = x.to("tiny")
    done = service.engine.counts.compiles + 1
    def step():
        e = torch.exp(y - y.amax(1, keepdim=True))
        torch.testing.assert_close((e / e.sum(1, keepdim=True)).cpu(), x.softmax(1))
    step_until(lambda: service.engine.counts.compiles == done and settled(), step)
assert service.engine.counts.compiles == 6, service.engine.counts
assert service.engine.counts.failures == 0, service.engine.counts
""",
        cache,
    )


def test_training_is_compiled_and_stays_right(cache: Path) -> None:
    auto(
        TRAINING
        + """
step, losses = make("tiny")
step_until(settled, step)
for _ in range(20):
    step()
other, expected = make("cpu")
for _ in losses:
    other()
torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-3, atol=1e-4)
assert service.engine.counts.compiles >= 1, service.engine.counts
assert any(r["engine"] == "uop" for p in _C.plans(0) for r in p["regions"])
""",
        cache,
    )


def test_a_schedule_of_learning_rates_compiles_once(cache: Path) -> None:
    auto(
        TRAINING
        + """
step, losses = make("tiny")
step_until(settled, step)
before = service.engine.counts.compiles
for _ in range(1000):
    step()
step_until(settled, step)
assert service.engine.counts.compiles == before <= 4, (before, service.engine.counts)
""",
        cache,
    )


def test_the_next_process_compiles_nothing(cache: Path) -> None:
    program = (
        TRAINING
        + """
step, losses = make("tiny")
step_until(settled, step)
print(service.engine.counts.compiles, service.engine.counts.cache_hits)
"""
    )
    compiles, hits = map(int, auto(program, cache).split())
    assert compiles >= 1
    assert hits == 0
    compiles, hits = map(int, auto(program, cache).split())
    assert compiles == 0
    assert hits >= 1


def test_a_damaged_cache_is_made_anew(cache: Path) -> None:
    program = """
    x = torch.arange(1000.0, device="tiny")
    results = []
    step_until(settled, lambda: results.append((x * 2 + 1).tanh().sum().item()))
    expected = (torch.arange(1000.0) * 2 + 1).tanh().sum().item()
    torch.testing.assert_close(torch.tensor(results), torch.full((len(results),), expected))
    print(service.engine.counts.compiles)
    """
    assert auto(program, cache).strip() == "1"
    for file in cache.iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(bytes(content))
    assert auto(program, cache).strip() == "1"


def test_a_cache_that_others_can_write_is_not_trusted(cache: Path) -> None:
    program = """
    x = torch.arange(1000.0, device="tiny")
    step_until(settled, lambda: (x * 2 + 1).sin().sum().item())
    print(service.engine.counts.compiles)
    """
    assert auto(program, cache).strip() == "1"
    cache.chmod(0o777)
    assert auto(program, cache, provokes="others can write there").strip() == "1"


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    program = """
    x = torch.arange(1000.0, device="tiny")
    step_until(settled, lambda: (x * 2 + 1).cos().sum().item())
    print(service.engine.counts.compiles)
    """
    assert auto(program, blocked / "cache", provokes="Not a directory").strip() == "1"


def test_a_cache_stays_where_it_was_when_the_program_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the program goes then. A relative XDG_CACHE_HOME is none, by its specification."""
    from torch_tiny.engine.settings import _cache_folder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_TINY_CACHE", "here")
    assert _cache_folder() == tmp_path / "here"
    monkeypatch.delenv("TORCH_TINY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache_folder() == tmp_path / ".cache" / "torch_tiny"


def test_two_processes_share_a_cache(cache: Path) -> None:
    program = """
    import subprocess, sys
    if len(sys.argv) == 1:
        other = subprocess.Popen([sys.executable, "-c", open("/proc/self/cmdline").read().split(
            chr(0))[2], "child"])
    x = torch.arange(5000.0, device="tiny")
    results = []
    step_until(settled, lambda: results.append((x * 3 - 1).exp().log().sum().item()))
    expected = (torch.arange(5000.0) * 3 - 1).exp().log().sum().item()
    torch.testing.assert_close(torch.tensor(results), torch.full((len(results),), expected))
    print(service.engine.counts.compiles, flush=True)
    if len(sys.argv) == 1:
        assert other.wait(60) == 0
    """
    assert sorted(auto(program, cache).split()) == ["0", "1"]


def test_a_killed_worker_is_replaced(cache: Path) -> None:
    auto(
        """
import os, signal
x = torch.arange(1000.0, device="tiny")
def first():
    assert (x + 1).sum().item() == 500500
step_until(lambda: service.engine.workers._all[0].pid is not None, first)
os.kill(service.engine.workers._all[0].pid, signal.SIGKILL)
step_until(lambda: service.engine.counts.failures == 1, first)
def second():
    assert (x * 2).sum().item() == 999000
step_until(lambda: service.engine.counts.compiles == 1 and settled(), second)
""",
        cache,
        provokes="the worker ended",
    )


def test_several_workers_compile_at_a_time(cache: Path) -> None:
    auto(
        """
workers = service.engine.workers._all
assert len(workers) == 3
sizes = range(1000, 1006)
def step():
    for size in sizes:
        x = torch.arange(float(size), device="tiny")
        assert (x * 2 + size).sum().item() == size * (size - 1) + size * size
step_until(lambda: service.engine.counts.compiles == len(sizes) and settled(), step)
assert sum(worker.pid is not None for worker in workers) > 1
assert service.engine.counts.failures == 0
""",
        cache,
        TORCH_TINY_WORKERS="3",
    )


def test_a_full_disk_costs_nothing_but_speed(cache: Path) -> None:
    auto(
        """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
x = torch.arange(1000.0, device="tiny")
def step():
    assert (x + 1).sum().item() == 500500
step_until(lambda: service.engine.counts.failures >= 1, step)
step()
assert service.engine.counts.last_failure
""",
        cache,
        provokes="compiling failed",
    )


def test_a_forked_child_leaves_the_parents_files(cache: Path) -> None:
    auto(
        """
import os, sys
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
x = torch.arange(100.0, device="tiny")
step_until(settled, lambda: (x * 2).sum().item())
assert service.engine.counts.compiles == 1, service.engine.counts
""",
        cache,
    )


def test_changing_shapes_keep_compiles_bounded(cache: Path) -> None:
    auto(
        """
import itertools
lengths = itertools.cycle(range(1, 200))
def step():
    x = torch.ones(next(lengths), 8, device="tiny")
    assert torch.softmax(x * 2, -1).sum().item() > 0
for _ in range(199):
    step()
assert service.engine.counts.compiles == 0  # seen once each: not hot
""",
        cache,
    )


def test_uop_mode_names_what_it_cannot_compile() -> None:
    python(
        """
        import torch
        x = torch.rand(4, 4, device="tiny")
        messages = []
        for _ in range(4):  # the first call is not recorded, the others must all be refused
            try:
                torch.linalg.ldl_factor(x + 1)[0].sum().item()
            except RuntimeError as error:
                messages.append(str(error))
        assert len(messages) >= 3, messages
        for message in messages:
            assert "linalg_ldl_factor_ex" in message and "TORCH_TINY_ENGINE=uop" in message, message
        y = torch.ones(3, device="tiny")
        assert [(y + 1).tolist() for _ in range(2)][1] == [2, 2, 2]
        """,
        TORCH_TINY_ENGINE="uop",
        TORCH_TINY_CACHE="",
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("x // torch.tensor([n, 1])", "ZeroDivisionError"),
        ("torch.remainder(x, torch.tensor([n, 1]))", "ZeroDivisionError"),
        ("torch.gather(x, 0, torch.tensor([1 - n, 3 * n - 2]))", "out of bounds"),
        ("x[torch.tensor([0, 2 - 2 * n])]", "out of bounds"),
        ("torch.embedding(x[:, None], torch.tensor([3 - 3 * n]))", "out of range"),
        ("torch.nn.functional.nll_loss(x[None].float(), torch.tensor([2 - 2 * n]))", "bounds"),
    ],
)
def test_bad_data_raises_as_on_the_cpu(program: str, message: str) -> None:
    """Good data first, so that the code is compiled by the time bad data comes."""
    python(
        f"""
        import torch
        x = torch.tensor([5, 7], device="tiny")
        def run(n):
            torch.tensor = lambda values: original(values, device="tiny")
            try:
                return ({program}).tolist()
            finally:
                torch.tensor = original
        original = torch.tensor
        for _ in range(3):
            run(1)
        try:
            run(0)
        except (RuntimeError, IndexError) as error:
            assert {message!r} in str(error), error
        else:
            raise AssertionError("no error")
        run(1)
        """,
        TORCH_TINY_ENGINE="uop",
        TORCH_TINY_CACHE="",
    )


def test_validation_finds_no_difference_in_training() -> None:
    python(
        "import torch\n"
        + TRAINING
        + """
step, losses = make("tiny")
for _ in range(4):
    step()
other, expected = make("cpu")
for _ in losses:
    other()
torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
""",
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_VALIDATE="1",
        TORCH_TINY_CACHE="",
    )


def test_validation_finds_no_difference_in_random_programs() -> None:
    code = """
        import sys
        sys.argv = ["programs", "--count", "12", "--seed", "7"]
        from tests.programs.__main__ import main
        sys.exit(main())
    """
    env = {"TORCH_TINY_ENGINE": "auto", "TORCH_TINY_VALIDATE": "1", "TORCH_TINY_CACHE": ""}
    assert "12 programs, 0 differences" in python(code, **env)


def test_deterministic_algorithms_are_pytorchs_own(cache: Path) -> None:
    auto(
        """
x = torch.randn(64, 1000)
y = x.to("tiny")
step_until(settled, lambda: (y * 3).exp().sum(1))
assert any(r["engine"] == "uop" for p in _C.plans(0) for r in p["regions"])
torch.use_deterministic_algorithms(True)
for _ in range(3):
    assert torch.equal((y * 3).exp().sum(1).cpu(), (x * 3).exp().sum(1))
""",
        cache,
    )


def test_a_wrong_mode_is_a_clear_error() -> None:
    code = """
    try:
        import torch_tiny
    except ValueError as error:
        assert "auto, aten, uop" in str(error)
    else:
        raise AssertionError("no error")
    """
    python(code, TORCH_TINY_ENGINE="fast", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_a_process_forked_before_use_compiles(cache: Path) -> None:
    auto(
        """
import os
child = os.fork()
if child == 0:
    x = torch.arange(100.0, device="tiny")
    step_until(settled, lambda: (x * 2).sum().item())
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        cache,
    )


def test_without_a_compiler_everything_runs_and_the_user_is_told(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "bin").mkdir()
    out = auto(
        """
        import torch_tiny
        x = torch.ones(3, device="tiny")
        def step():
            assert (x + 1).tolist() == [2, 2, 2]
        step_until(lambda: torch_tiny.report().failures, step)
        (failure,) = torch_tiny.report().failures
        assert failure.kind == "missing" and "gcc" in str(torch_tiny.report()), failure
        from torch_tiny.cli import info
        print(info())
        """,
        cache,
        provokes="nothing is compiled: no gcc was found",
        PATH=str(tmp_path / "bin"),
    )
    assert "gcc" in out


LAYERS = """
import torch_tiny
from torch.nn import functional as F

class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(layers))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(32) for _ in range(layers))
    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.gelu(layer(norm(x)))
        return x

def play(layers, extra=False):
    torch.manual_seed(0)
    net = Net(layers).to("tiny")
    x = torch.randn(8, 32).to("tiny")
    def step():
        loss = net(x).square().mean()
        loss.backward()
        if extra:
            (loss * 3).tanh().item()
        loss.item()
        net.zero_grad()
    done = service.engine.counts.compiles
    step_until(lambda: service.engine.counts.compiles > done and settled(), step)
"""


def test_equal_layers_are_compiled_once(cache: Path) -> None:
    """And so are those of another trace, also of another process."""
    program = (
        LAYERS
        + """
counts = service.engine.counts
play(3)
first = counts.regions
play(12)
assert counts.regions == first, counts
play(3, extra=True)
assert first < counts.regions <= first + 2, counts
shared = [r["code"] for p in _C.plans(0) for r in p["regions"]]
assert len(set(shared)) < len(shared) / 2
print(first, counts.regions)
"""
    )
    first, regions = map(int, auto(program, cache).split())
    assert 0 < first < regions
    other = LAYERS + "play(7); print(service.engine.counts.compiles, service.engine.counts.regions)"
    compiles, regions = map(int, auto(other, cache).split())
    assert compiles > 0
    assert regions == 0


def test_code_that_does_not_load_is_made_anew(cache: Path) -> None:
    """As of another system, whole and in its place."""
    program = """
x = torch.arange(1000.0, device="tiny")
step_until(settled, lambda: (x * 2 + 1).tanh().sum().item())
print(service.engine.counts.compiles, service.engine.counts.regions)
"""
    assert auto(program, cache).split() == ["1", "1"]
    (region,) = cache.glob("*.region")
    rest = region.read_bytes().partition(b"\n")[2]
    code = rest.partition(b"\n")[0] + b"\n" + b"no shared object"
    region.write_bytes(hashlib.sha256(code).hexdigest().encode() + b"\n" + code)
    assert auto(program, cache).split() == ["1", "1"]
    assert auto(program, cache).split() == ["0", "0"]


def test_a_plan_of_many_regions_needs_few_files(cache: Path) -> None:
    program = (
        LAYERS
        + """
import os, resource
net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(n, n + 1), torch.nn.GELU())
    for n in range(8, 38))).to("tiny")
x = torch.randn(4, 8).to("tiny")
most = len(os.listdir("/proc/self/fd")) + 16
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
step_until(lambda: settled() and max(len(p["regions"]) for p in _C.plans(0)) >= 30,
           lambda: net(x).sum().item())
"""
    )
    auto(program, cache)


def test_draws_keep_their_order() -> None:
    """Though a region stands before both and needs only the second."""
    python(
        """
        import torch
        from torch.nn import functional as F
        def play(device, generator):
            x, w = torch.arange(6.0, device=device), torch.ones(99, device=device)
            found = []
            for seed in range(4):
                generator.manual_seed(seed)
                grown = x.exp()
                kept = F.dropout(w, 0.5)
                noise = torch.empty_like(x).bernoulli_(0.5)
                found += [(grown + noise).tolist(), kept.tolist()]
            return found
        expected = play("cpu", torch.default_generator)
        assert play("tiny", torch.tiny.default_generators[0]) == expected
        """,
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_VALIDATE="1",
        TORCH_TINY_CACHE="",
    )


def test_validation_is_of_results_alone() -> None:
    """A sum has memory for all that was added up, most of which nobody has written."""
    python(
        """
        import torch
        x, y = torch.randn(2, 9).to("tiny")
        assert len({torch.nn.functional.mse_loss(x, y).item() for _ in range(4)}) == 1
        """,
        TORCH_TINY_ENGINE="auto",
        TORCH_TINY_VALIDATE="1",
        TORCH_TINY_CACHE="",
    )


def test_a_turn_that_raises_does_not_decide(cache: Path) -> None:
    """It may end at its first call, and would be the fastest of all."""
    auto(
        """
table = torch.randn(2000, 32, device="tiny")
good = torch.randint(2000, (20000,), device="tiny")
bad = good.clone()
bad[7] = 2000
def step(index=good):
    y = table[index]
    for _ in range(10):
        y = y * 1.01 + 0.5
    return y.sum().item()
def region():
    return [r for p in _C.plans(0) for r in p["regions"]]
step_until(lambda: region() and service.engine.counts.waiting == 0, step)
while not region()[0]["engine"]:
    try:
        step(bad)
    except IndexError:
        pass
    step()
assert region()[0]["engine"] == "uop", region()
""",
        cache,
    )


def test_the_choice_is_one_for_each_number_of_threads(cache: Path) -> None:
    program = """
x = torch.randn(256, 1024, device="tiny")
step = lambda: (x * 1.5 + 2).tanh().sum(1).cpu()
chosen = lambda: {r["threads"]: r["engine"] for p in _C.plans(0) for r in p["regions"]}
for threads in (1, 2):
    torch.set_num_threads(threads)
    step()
    step_until(lambda: settled() and list(chosen()) == [threads], step)
"""
    auto(program, cache)
    auto(
        """
x = torch.randn(256, 1024, device="tiny")
step = lambda: (x * 1.5 + 2).tanh().sum(1).cpu()
step_until(lambda: service.engine.counts.cache_hits == 1, step)
for threads in (1, 2):
    torch.set_num_threads(threads)
    step()
    assert all(r["engine"] for p in _C.plans(0) for r in p["regions"]), _C.plans(0)
""",
        cache,
    )


def test_memory_that_elements_share_is_written_as_by_the_cpu(cache: Path) -> None:
    """PyTorch's kernels write shared elements one after the other, and so they stay PyTorch's."""
    auto(
        """
def program(device):
    x = torch.arange(12.0, device=device)
    x = x * 2 + 1
    x.unfold(0, 4, 2).mul_(2)
    x.as_strided((3, 3), (1, 2)).add_(1)
    return x.sin()
done = lambda: service.engine.counts.compiles and settled()
wanted = program("cpu")
def step():
    torch.testing.assert_close(program("tiny").cpu(), wanted)
step_until(done, step)
for _ in range(50):
    step()
""",
        cache,
    )


def test_many_traces_do_not_keep_a_later_one_from_being_refined(cache: Path) -> None:
    auto(
        """
import time
service._MOST_HOT = 4
x = torch.randn(64, 64, device="tiny")
for n in range(1, 8):
    small = torch.randn(n, device="tiny")
    step_until(lambda: service.engine.counts.compiles == n and settled(),
               lambda: (small * 2).exp().cpu())
wide = torch.randn(512, 512, device="tiny")
step = lambda: (wide - wide.amax(1, keepdim=True)).exp().sum(1).cpu()
step_until(lambda: service.engine.counts.compiles == 8 and settled(), step)
key = next(p["regions"][0]["code"] for p in _C.plans(0) if p["calls"] > 2)
step_until(lambda: key in service.engine._refined, step)
""",
        cache,
    )


def test_room_is_made_for_more_code_than_can_be_loaded(cache: Path) -> None:
    auto(
        """
_C.set_kept(1024, 16384, 3)
counts = service.engine.counts
def compiled(device, width):
    time.sleep(1.1)  # so long nothing before it was used
    x, known = torch.randn(width, device=device), counts.compiles + counts.cache_hits
    step_until(lambda: counts.compiles + counts.cache_hits > known and settled(),
               lambda: (x * 2).exp().cpu())
for width in range(64, 70):
    compiled(f"tiny:{width % 2}", width)
plans = [plan for device in range(2) for plan in _C.plans(device)]
assert 1 <= len(plans) <= 3, plans
compiled("tiny:0", 64)  # what went is compiled again
assert counts.failures == 0
""",
        cache,
        TORCH_TINY_DEVICES="cpu,cpu",
    )


def test_code_for_which_no_room_can_be_made_is_told(cache: Path) -> None:
    """What is in use stays: if it went, it would have to come back at once."""
    auto(
        """
_C.set_kept(1024, 16384, 1)
x = torch.randn(64, device="tiny")
first = lambda: (x * 2).exp().cpu()
def both():
    first()
    (x * 3).sin().tanh().cpu()
step_until(lambda: service.engine.counts.compiles == 1, first)
step_until(lambda: service.engine.counts.failures == 1, both)
assert "in use, and no more can be" in service.engine.counts.last_failure
assert len(_C.plans(0)) == 1
""",
        cache,
        provokes="compile",
    )


def test_loaded_code_is_not_called_by_the_number_of_a_file(cache: Path) -> None:
    """A crash reporter that opens libraries by their names would open some other file."""
    auto(
        """
import ctypes
x = torch.randn(64, device="tiny")
step_until(lambda: service.engine.counts.compiles == 1, lambda: (x * 2).exp().cpu())
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
visit = Visit(lambda info, *_: names.append(info.contents.name.decode()) or 0)
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
assert "torch_tiny" in names and not any("/fd/" in name for name in names), names
""",
        cache,
    )
