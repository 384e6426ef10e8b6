"""A device that tinygrad drives."""

import subprocess
from typing import Any

from tinygrad.device import CompileError, Device, TinyELF

from torch_tiny.uops import dtypes


def open_device(name: str) -> Any:
    """tinygrad's device; raises what it raises where there is none."""
    return Device[name]


def program(device: Any, renderer: Any, name: str, text: str, buffers: int) -> Any:
    """What runs a kernel: program(*opaque_buffers, global_size=..., local_size=...).

    A RuntimeError has what the device's compiler says.
    """
    signature = tuple((None, i, dtypes.uint8, (1,)) for i in range(buffers))
    try:
        code = renderer.compiler.compile(text)
    except (CompileError, subprocess.CalledProcessError) as error:
        raise RuntimeError(str(error)) from error
    return device.runtime(TinyELF(code, name, renderer.target, signature))
