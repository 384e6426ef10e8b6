"""Emulated Metal and AMD devices for every Python program that has this folder on its path.

    PYTHONPATH=tests/emulated TORCH_TINY_DEVICES=metal python program.py

Modules are changed when they are imported: torch_tiny's kinds, tinygrad's renderers, allocators and
(for Metal) its whole runtime are the real ones.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest import mock

sys.path.append(str(Path(__file__).parent))


def _available(module: ModuleType) -> None:
    type(module.KIND).why_not = lambda _self: None


def _hip_compiler(module: ModuleType) -> None:
    import emulated_amd

    module.HIPCompiler = emulated_amd.Compiler


def _metal_runtime(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    import emulated_metal
    from tinygrad.runtime.support import c

    sys.modules.update(emulated_metal.modules())
    with mock.patch.object(c, "DLL", mock.MagicMock()):
        execute(module)
    module.MetalCompiler = emulated_metal.Compiler
    module.to_ns_str = str
    module.from_ns_str = lambda text: getattr(text, "text", text)


def _amd_runtime(module: ModuleType, _execute: Callable[[ModuleType], None]) -> None:
    import emulated_amd

    module.AMDDevice = emulated_amd.AMDDevice


def _then(change: Callable[[ModuleType], None]) -> Callable[..., None]:
    def execute_and_change(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        execute(module)
        change(module)

    return execute_and_change


_EXECUTED = {
    "torch_tiny.portable.kinds.metal": _then(_available),
    "torch_tiny.portable.kinds.amd": _then(_available),
    "tinygrad.runtime.support.compiler_amd": _then(_hip_compiler),
    "tinygrad.runtime.ops_metal": _metal_runtime,
    "tinygrad.runtime.ops_amd": _amd_runtime,
}


class _Finder:
    """Finds these modules as always, but executes them in another way."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _EXECUTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module
        change = _EXECUTED[name]
        spec.loader.exec_module = lambda module: change(module, execute)  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
