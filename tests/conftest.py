"""Fixtures for all tests. TORCH_TINY_DEVICES says on which memory (cpu, cuda) they run."""

from collections.abc import Iterator

import before_torch  # noqa: F401
import pytest
from harness import PORTABLE_KINDS, why_no_portable
from util import DEVICE, KIND

if DEVICE == "tiny":
    import torch_tiny  # noqa: F401  (registers the device where it is not installed)


@pytest.fixture(autouse=True)
def _nothing_fails_silently(request: pytest.FixtureRequest) -> Iterator[None]:
    """What costs speed without a word (torch_tiny.failures) fails the test in which it happens.

    A test that means to have such failures is marked with their kinds: `provokes("relayout")`.
    """
    if DEVICE != "tiny":
        yield
        return
    from torch_tiny import failures

    before = {(f.kind, f.reason, f.where): f.count for f in failures.listed()}
    yield
    new = [f for f in failures.listed() if f.count > before.get((f.kind, f.reason, f.where), 0)]
    marker = request.node.get_closest_marker("provokes")
    provoked = set() if marker is None else set(marker.args)
    assert {f.kind for f in new} == provoked, new


@pytest.fixture
def device() -> str:
    """The device under test."""
    return DEVICE


@pytest.fixture
def kind() -> str:
    """The memory of the device under test: "cpu" or "cuda"."""
    return KIND


@pytest.fixture(scope="session", params=PORTABLE_KINDS)
def portable(request: pytest.FixtureRequest) -> str:
    """A kind of portable device, for programs in processes of their own: see on_portable."""
    if reason := why_no_portable(request.param):
        pytest.skip(f"no {request.param}: {reason}; see make devices")
    return str(request.param)


@pytest.fixture(scope="module")
def everything_compiled() -> Iterator[None]:
    """As with TORCH_TINY_ENGINE=uop, for the tests of a file."""
    from torch_tiny import _C
    from torch_tiny.engine.service import Engine
    from torch_tiny.engine.settings import Settings

    engine = Engine(Settings("uop", False, None))
    engine.start()
    yield
    _C.set_mode("aten")
    engine.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, or the other processes would wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from opdb.summary import lines

    for line in lines(terminalreporter.stats):
        terminalreporter.write_line(line)
