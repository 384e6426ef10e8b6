"""AMD's GPUs through tinygrad: kernels in HIP's language."""

import shutil
from typing import Any

from tinygrad.renderer.cstyle import HIPCCRenderer, HIPRenderer


def renderer_of(device: Any) -> Any:
    """tinygrad takes LLVM's assembler where ROCm's library is missing, which ours do not write."""
    target = device.renderer.target
    try:
        return HIPRenderer(target)
    except Exception as error:  # whatever a library says that cannot be used
        if shutil.which("hipcc") is not None:
            return HIPCCRenderer(target)
        raise RuntimeError(
            f"AMD: no compiler for HIP ({error}): install ROCm's libamd_comgr, or hipcc"
        ) from error
