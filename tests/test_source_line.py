"""The line of the program that a read is counted at is the one that Python itself tells."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest
import torch
from harness import needs_tiny
from torch import Tensor

pytestmark = needs_tiny


def line() -> int:
    told.append(sys._getframe(1).f_lineno)
    return 0


told: list[int] = []


def plain(x: Tensor) -> None:
    assert x.sum().item() + line()
    _ = (
        x.sum(),
        x.sum().item() + line(),
    )


def called_by_c(x: Tensor) -> None:
    sorted([1, 2], key=lambda _: x.sum().item() + line())
    list(map(partial(lambda y, _: y.sum().item() + line(), x), range(2)))


def in_comprehensions(x: Tensor) -> None:
    _ = [x.sum().item() + line() for _ in range(2)]
    _ = {i: x.sum().item() + line() for i in range(2)}
    assert sum(x.sum().item() + line() for _ in range(2))


def in_a_generator(x: Tensor) -> None:
    def inner() -> Iterator[float]:
        yield x.sum().item() + line()

    def outer() -> Iterator[float]:
        yield from inner()
        yield x.sum().item() + line()

    assert all(outer())


def in_coroutines(x: Tensor) -> None:
    async def values() -> AsyncIterator[float]:
        yield x.sum().item() + line()
        await asyncio.sleep(0)
        yield x.sum().item() + line()

    async def main() -> None:
        async for value in values():
            assert value + x.sum().item() + line()

    asyncio.run(main())


def in_special_methods(x: Tensor) -> None:
    class Special:
        body = x.sum().item() + line()

        def __init__(self) -> None:
            self.made = x.sum().item() + line()

        def __add__(self, _: int) -> float:
            return x.sum().item() + line()

        @property
        def value(self) -> float:
            return x.sum().item() + line()

        def __del__(self) -> None:
            assert x.sum().item() + line()

    special = Special()
    assert special + 1
    assert special.value


def beyond_torch(x: Tensor) -> None:
    """Frames of torch's are between the caller and the line."""
    module = torch.nn.Identity()
    module.register_forward_hook(lambda _, __, y: y.sum().item() + line())
    module(x)
    with contextlib.suppress(ZeroDivisionError), torch.no_grad():
        try:
            _ = 1 / 0
        finally:
            assert x.sum().item() + line()


def in_an_init_of_torch(x: Tensor) -> None:
    """Often: between an __init__ and its caller, Python then has a frame of its own."""
    source = "class Reads:\n    def __init__(self, x): x.sum().item()"
    namespace: dict[str, Callable[[Tensor], object]] = {}
    exec(compile(source, torch.__file__, "exec"), namespace)
    reads = namespace["Reads"]
    for _ in range(100):
        _ = reads(x), line()


def in_code_made_anew(x: Tensor) -> None:
    for _ in range(3):
        code = compile("\n\nx.sum().item() + line()", "made.py", "exec")
        exec(code, {"x": x, "line": line})


def in_long_code(x: Tensor) -> None:
    """Offsets that take more than a byte, behind jumps."""
    steps = "\n".join(f"if a == {i}:\n  a += x.sum().item() + line() - 2" for i in range(300))
    exec(compile(f"a = 0\n{steps}", "made.py", "exec"), {"x": x, "line": line})


def in_a_thread(x: Tensor) -> None:
    thread = threading.Thread(target=lambda: x.sum().item() + line())
    thread.start()
    thread.join()


def often(x: Tensor) -> None:
    """Until the interpreter has specialised it."""
    for _ in range(100):
        assert x.sum().item() + line()


def under_a_tracer(x: Tensor) -> None:
    before = sys.gettrace()
    sys.settrace(lambda *_: lambda *_: None)
    try:
        plain(x)
    finally:
        sys.settrace(before)


def monitored(x: Tensor) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("sys.monitoring is new in Python 3.12")
    tool, events = 4, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "test")
    try:
        sys.monitoring.set_events(tool, events.LINE | events.INSTRUCTION | events.CALL)
        plain(x)
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)


FORMS = [
    *(plain, called_by_c, in_comprehensions, in_a_generator, in_coroutines, in_special_methods),
    *(beyond_torch, in_an_init_of_torch, in_code_made_anew, in_long_code, in_a_thread, often),
    *(under_a_tracer, monitored),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_line_of_a_read(form: Callable[[Tensor], None], device: str) -> None:
    x = torch.ones(3, device=device)
    form(x)  # the first call of its kind may run at once
    torch.tiny.reset_metrics()
    told.clear()
    form(x)
    causes = [c for c in torch.tiny.metrics()["causes"] if "item" in c["reason"]]
    counts = {int(c["where"].rpartition(":")[2]): c["count"] for c in causes}
    assert counts == {number: told.count(number) for number in told}
