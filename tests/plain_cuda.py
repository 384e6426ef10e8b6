"""Backward passes on plain CUDA, which PyTorch refuses where a device from outside is loaded.

Its engine knows the streams of one kind of accelerator at a time, and the one from outside comes
first (pytorch/pytorch#161129). Whoever uses both has to live with that; the oracle must not. So
PyTorch is made to forget the other device for as long as a backward pass on CUDA takes.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def install() -> None:
    """Let every backward pass that starts from a CUDA tensor run as if there were only CUDA."""
    original = torch.autograd._engine_run_backward
    flag = _Flag()

    def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(root.is_cuda for root in roots):
            return original(roots, *args, **kwargs)
        with flag.cleared():
            return original(roots, *args, **kwargs)

    torch.autograd._engine_run_backward = run_backward


class _Flag:
    """c10's `privateuse1_backend_name_set`, which nothing but c10 itself can reach by name."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        self._is_set = library._ZN3c1033is_privateuse1_backend_registeredEv
        self._is_set.restype = ctypes.c_bool
        self._byte = ctypes.c_ubyte.from_address(_address_read_by(self._is_set))
        self._lock, self._users, self._value = threading.Lock(), 0, 0
        with self.cleared():
            assert not self._is_set(), "c10 keeps this somewhere else"

    @contextmanager
    def cleared(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._value, self._byte.value = self._byte.value, 0
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._byte.value = self._value


def _address_read_by(function: Any) -> int:
    """The address of the byte that an x86-64 function begins by loading, relative to itself."""
    start = ctypes.cast(function, ctypes.c_void_p).value
    code = ctypes.string_at(start, 16)
    load = code.find(b"\x0f\xb6\x05")  # movzx eax, byte ptr [rip + offset]
    assert load >= 0, f"c10 is compiled in a way that is not known here: {code.hex()}"
    offset = int.from_bytes(code[load + 3 : load + 7], "little", signed=True)
    return start + load + 7 + offset
