"""Forks, threads and the end of the process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from harness import needs_tiny, no_device_asserts, numbers, python
from torch import Tensor
from util import KIND, ORACLE, assert_same

USED = 'torch.ones(3, device="tiny").sum().item()'


@needs_tiny
def test_fork_before_use() -> None:
    out = python("""
        import os, torch
        torch.empty(3)
        child = os.fork()
        value = (torch.ones(3, device="tiny") * 2).sum().item()
        if child == 0:
            print("child", value, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent", value)
    """)
    assert sorted(out.splitlines()) == ["child 6.0", "parent 6.0"]


USES = [
    'torch.ones(3, device="tiny")',
    "x + 1",
    "x.cpu()",
    "x.sum().item()",
    "print(x)",
    "torch.tiny.synchronize()",
    "x.add_(1)",
    "x.nonzero()",
    'torch.ones(3).to("tiny")',
    "torch.rand(3, device='tiny')",
    *(["x.numpy()"] if KIND == "cpu" else []),
]


@needs_tiny
def test_fork_after_use_is_refused() -> None:
    out = python(f"""
        import os, torch
        x = torch.ones(3, device="tiny") + 1
        x.cpu()
        y = x * 2
        for use in {USES}:
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
    """)
    *said, parent = out.splitlines()
    assert said == ["refused"] * len(USES)
    assert parent == "[4.0, 4.0, 4.0]"


@needs_tiny
def test_a_forked_child_that_leaves_the_device_alone_ends_well() -> None:
    out = python("""
        import multiprocessing, torch
        x = torch.ones(3, device="tiny") + 1
        def work(queue):
            queue.put(torch.ones(3).sum().item())
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        print(queue.get())
        child.join()
        print(child.exitcode, x.tolist())
    """)
    assert out.splitlines() == ["3.0", "0 [2.0, 2.0, 2.0]"]


@needs_tiny
@pytest.mark.parametrize("method", ["spawn", "forkserver"])  # Python 3.14 begins with the latter
def test_started_processes_use_the_device(method: str, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import multiprocessing as mp, torch\n"
        "def work(q): q.put(torch.ones(3, device='tiny').sum().item())\n"
        "if __name__ == '__main__':\n"
        "    torch.ones(3, device='tiny').cpu()\n"
        f"    c = mp.get_context({method!r}); q = c.Queue()\n"
        "    p = c.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join()\n"
        "    print(p.exitcode)\n"
    )
    out = python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert out.split() == ["3.0", "0"]


@needs_tiny
@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "import sys; sys.exit(0)",
        "import gc; gc.disable()",
        "import atexit; atexit.register(lambda: print(x.sum().item()))",
        "import torch.nn; m = torch.nn.Linear(2, 2).to('tiny'); m(torch.ones(1, 2, device='tiny'))",
        "torch.rand(3, device='tiny'); s = torch.Stream(device='tiny'); e = s.record_event()",
        "class Late:\n    def __del__(self): self.t.add_(1)\nlate = Late(); late.t = x",
    ],
)
def test_exit_with_a_pending_trace(ending: str) -> None:
    python(
        f"import torch\nx = torch.ones(3, device='tiny')\ny = x @ x + 1\nx.mul_(2)\n{ending}",
        timeout=60,
    )


@needs_tiny
@no_device_asserts
def test_exit_with_a_pending_error() -> None:
    python("""
        import torch
        x = torch.ones(3, device="tiny")
        x.index_select(0, torch.tensor([1], device="tiny"))
        y = x.index_select(0, torch.tensor([9], device="tiny"))
    """)


@needs_tiny
def test_exit_right_after_backward() -> None:
    # Autograd's threads may still be dropping the graph when the interpreter ends.
    code = """
        import torch
        x = torch.ones(4, device="tiny", requires_grad=True)
        (x * 2).sum().backward()
    """
    for _ in range(4):
        python(code)


def test_an_exception_ends_the_program_as_usual() -> None:
    python(
        f"import torch\n{USED}\nx = torch.ones(3, device='tiny') + 1\nraise SystemExit(7)", status=7
    )


def run_in_threads(count: int, work) -> list[Tensor]:  # type: ignore[no-untyped-def]
    results: list[Tensor | None] = [None] * count
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(i: int) -> None:
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results  # type: ignore[return-value]


def test_threads_with_tensors_of_their_own(device: str) -> None:
    def work(i: int) -> Tensor:
        x = numbers(4, 4, seed=i).to(device)
        for step in range(100):
            x = torch.tanh(x @ x.T) + step % 3
            x[i % 4] += 1
            if step % 20 == i:
                x.sum().item()
        return x

    for i, result in enumerate(run_in_threads(4, work)):
        x = numbers(4, 4, seed=i).to(ORACLE)
        for step in range(100):
            x = torch.tanh(x @ x.T) + step % 3
            x[i % 4] += 1
        assert_same(result, x)


def test_threads_that_share_a_tensor(device: str) -> None:
    shared = torch.zeros(4, device=device)
    table = torch.zeros(4, 100, device=device)

    def work(i: int) -> Tensor:
        for step in range(100):
            table[i, step] = step
            shared[i] += 1
        return shared

    run_in_threads(4, work)
    assert shared.tolist() == [100] * 4
    assert_same(table, torch.arange(100.0).expand(4, 100), strides=False)


def test_threads_that_train(device: str) -> None:
    def train(i: int, where: str) -> Tensor:
        w = numbers(3, 3, seed=i).to(where).requires_grad_()
        for _ in range(10):
            (w @ w).square().mean().backward()
            with torch.no_grad():
                w -= 0.01 * w.grad
                w.grad = None
        return w.detach()

    for i, result in enumerate(run_in_threads(3, lambda i: train(i, device))):
        assert_same(result, train(i, ORACLE))


def test_a_tensor_handed_to_another_thread(device: str) -> None:
    x = torch.ones(3, device=device) + 1
    assert [t.tolist() for t in run_in_threads(2, lambda i: x * (i + 1))] == [[2] * 3, [4] * 3]


def test_threads_that_fill_parts_of_one_tensor(device: str) -> None:
    for _ in range(20):
        whole = torch.empty(8, 1000, device=device)  # its memory is made by whoever comes first
        run_in_threads(8, lambda i, whole=whole: whole[i].copy_(torch.full((1000,), float(i))))
        assert_same(whole, torch.arange(8.0)[:, None].expand(8, 1000).contiguous().to(ORACLE))
