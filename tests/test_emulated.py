"""Metal and AMD, whose machines are not at hand: their kernels in an emulation on the CPU.

The kinds, the renderers and the engine are the real ones, and so is tinygrad's runtime of Metal; the
compilers are g++ (tests/emulated). What the hardware and its compilers do is not seen here.
"""

import os
import shutil
from pathlib import Path

import pytest
import test_portable
from harness import ROOT, needs_cpu_memory, needs_tiny

pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled by g++"),
]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(params=["metal", "amd"])
def kind(
    request: pytest.FixtureRequest, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """For programs in processes of their own."""
    path = os.pathsep.join((str(ROOT / "tests" / "emulated"), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TORCH_TINY_EMULATED", str(libraries))
    return str(request.param)


for name in dir(test_portable):
    if name.startswith("test_"):
        globals()[name] = getattr(test_portable, name)
