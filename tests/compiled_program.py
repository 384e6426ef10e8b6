"""Runs what codegen.generate makes, without the core."""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torch_tiny.engine import codegen
from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.codegen_place import Kernel
from torch_tiny.engine.loadable import as_file


def loaded(source: str) -> ctypes.CDLL:
    with as_file(codegen.shared_object(source)) as path:
        return ctypes.CDLL(path)


def run(
    program: Program[Kernel], library: ctypes.CDLL, arrays: Sequence[npt.NDArray[np.generic]]
) -> None:
    """Runs on one thread in place on `arrays`."""
    scratch = [np.empty(max(size, 1), np.uint8) for size in program.temporaries]
    for kernel in program.kernels:
        pointers = [arrays[b] if b >= 0 else scratch[-1 - b] for b in kernel.buffers]
        table = (ctypes.c_void_p * len(pointers))(*(a.ctypes.data for a in pointers))
        begin, end = ctypes.c_int64(0), ctypes.c_int64(kernel.parallel)
        getattr(library, kernel.name)(table, begin, end)
    for temporary, buffer in program.copies:
        data = arrays[buffer]
        ctypes.memmove(data.ctypes.data, scratch[temporary].ctypes.data, data.nbytes)
