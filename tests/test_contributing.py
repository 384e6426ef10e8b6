"""The recipes of docs/contributing.md, done as they are written there."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ROOT, agree, needs_cpu_memory, needs_tiny, python, why_no_portable

from torch_tiny import _C
from torch_tiny.engine import codegen
from torch_tiny.engine.compile import compile_trace
from torch_tiny.engine.service import Engine
from torch_tiny.engine.settings import Settings
from torch_tiny.engine.target import Cpu

pytestmark = [needs_tiny, needs_cpu_memory]

HYPOT = """
import torch, torch_tiny
x = torch.arange(1.0, 9.0, device="tiny")
for _ in range(3):
    try:
        print(torch.hypot(x * 3, x * 4).tolist() == [5.0 * i for i in range(1, 9)])
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def recipe(kind: str) -> tuple[str, str]:
    """The path, or "", and the text of the block that begins with ```python and this word."""
    text = (ROOT / "docs" / "contributing.md").read_text()
    (found,) = re.findall(rf"^```python {kind} ?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    without = shutil.ignore_patterns("__pycache__", "csrc")
    shutil.copytree(ROOT / "torch_tiny", tmp_path / "torch_tiny", ignore=without)
    return tmp_path


def outcome(checkout: Path, code: str, **env: str) -> list[str]:
    path = os.pathsep.join((str(checkout), os.environ.get("PYTHONPATH", "")))
    program = f"import sys; sys.path.insert(0, {str(checkout)!r})\n{code}"
    return python(program, PYTHONPATH=path, **env).splitlines()


def test_an_operator_is_a_row(checkout: Path) -> None:
    path, row = recipe("row")
    text = (checkout / path).read_text()
    assert text.count(row) == 1, f"{path} has no such row any more"
    (checkout / path).write_text(text.replace(row, ""))
    assert "no lowering for aten::hypot" in outcome(checkout, HYPOT, TORCH_TINY_ENGINE="uop")[-1]
    (checkout / path).write_text(text)
    assert outcome(checkout, HYPOT, TORCH_TINY_ENGINE="uop") == ["True"] * 3


def test_a_kind_of_device_is_a_file(checkout: Path) -> None:
    if reason := why_no_portable("cl"):
        pytest.skip(f"no cl: {reason}; see make devices")
    path, text = recipe("file")
    (checkout / path).write_text(text)
    code = """
import torch, torch_tiny
x = torch.arange(-3.0, 3.0, device="tiny")
print(torch.tiny.get_device_name(), (x / 2).floor().tolist())
"""
    (line,) = outcome(checkout, code, TORCH_TINY_DEVICES="toy", TORCH_TINY_FALLBACK="error")
    assert line == "toy [-2.0, -1.0, -1.0, 0.0, 0.0, 1.0]"


def written(name: str) -> Any:
    """The class that the recipe defines."""
    names = {"Cpu": Cpu, "codegen": codegen, "compile_trace": compile_trace}
    before = set(names)
    exec(recipe(name)[1], names)
    (made,) = (value for key, value in names.items() if key not in {*before, "__builtins__"})
    return made


def hot(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(1) * 2 + x.exp()).sum(1)


def test_a_target_is_a_class() -> None:
    x = torch.randn(64, 64).to("tiny")
    hot(x).tolist()
    _C.listen(True)
    hot(x).tolist()
    (trace,) = _C.listen(False)

    def kernels(target: Cpu) -> int:
        made = compile_trace(trace, target=target)
        return sum(len(code.kernels) for code, _ in made.built.values())

    assert kernels(written("target")()) > kernels(Cpu()) > 0


def test_an_engine_compiles_jobs() -> None:
    engine = Engine(Settings("uop", False, None))
    engine.workers = written("engine")()
    engine.start()
    try:
        x = torch.randn(33, 65)
        for _ in range(3):
            torch.testing.assert_close(hot(x.to("tiny")).cpu(), hot(x))
    finally:
        _C.set_mode("aten")
        engine.stop()
    assert engine.counts.regions > 0 and not engine.counts.failures


def test_a_test_is_a_question_to_both(device: str) -> None:
    names: dict[str, Any] = {"torch": torch, "agree": agree}
    exec(recipe("test")[1], names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(device)
