"""Kernels of Metal and HIP, compiled by g++ and run by threads.cpp."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off", f"-I{HERE}")
GUARD = b"\xa5" * 64  # bytes behind a buffer that nobody may write
MOST_THREADS = 1024


class CompileError(Exception):
    """What g++ says of a kernel."""


def compiled(text: str, language: str, most_shared: int) -> bytes:
    """The path of a library, as bytes. The text stays beside it, under the name of its language."""
    given = text
    name, count, most_threads = _signature(text, language)
    shared = sum(int(n) * _SIZES[kind] for kind, n in re.findall(_SHARED[language], text))
    if shared > most_shared:
        raise CompileError(f"{shared} bytes of work memory")
    operands = [f"emulated_any{{b[{i}]}}" for i in range(count)]
    for pattern, new in _REPLACED[language]:
        text = re.sub(pattern, new, text)
    if language == "metal":
        operands += (f"uint3{{{which}[0], {which}[1], {which}[2]}}" for which in _PLACES)
    else:
        text = f'#include "hip.h"\n{text}'
    text += f'\nextern "C" void emulated_call(void **b) {{ {name}({", ".join(operands)}); }}\n'
    text += f'extern "C" int emulated_most_threads = {most_threads};\n'
    text += f'extern "C" int emulated_has_barriers = {int("barrier(" in text)};\n'
    path = _built(text)
    path.with_suffix(f".{language}").write_text(given)
    return str(path).encode()


class Kernel:
    """A compiled kernel. Running it raises what is wrong with it."""

    def __init__(self, library: bytes) -> None:
        self._launch = _threads().emulated_launch
        self._library = ctypes.CDLL(library.decode())
        self._most_threads = self._int("emulated_most_threads")
        self._has_barriers = self._int("emulated_has_barriers")

    def run(self, addresses: Sequence[int], groups: Sequence[int], threads: Sequence[int]) -> None:
        assert len(groups) == len(threads) == 3, (groups, threads)
        count = threads[0] * threads[1] * threads[2]
        assert 1 <= count <= self._most_threads, f"{count} threads of {self._most_threads}"
        wrong = self._launch(
            self._library.emulated_call,
            (ctypes.c_void_p * len(addresses))(*addresses),
            (ctypes.c_uint * 3)(*groups),
            (ctypes.c_uint * 3)(*threads),
            self._has_barriers,
        )
        if wrong:
            raise RuntimeError(wrong.decode())

    def _int(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value


class Memory:
    """Bytes that are not zero at first, with a guard behind them."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._data = ctypes.create_string_buffer(b"\xff" * (nbytes + 16) + GUARD, nbytes + 80)
        self.address = (ctypes.addressof(self._data) + 15) // 16 * 16
        ctypes.memmove(self.address + nbytes, GUARD, 48)

    def check(self) -> None:
        assert ctypes.string_at(self.address + self.nbytes, 48) == GUARD[:48], "out of bounds"


# --- how it is done ---

_PLACES = ("emulated_group", "emulated_thread")
_TYPE = r"((?:(?:un)?signed )?\w+)"
_SHARED = {
    "metal": rf"threadgroup __attribute__\(\(aligned\(16\)\)\) {_TYPE} \w+\[(\d+)\];",
    "hip": rf"__attribute__\(\(shared, aligned\(16\)\)\){_TYPE} \w+\[(\d+)\];",
}
_SIZES = {"float": 4, "int": 4, "uint": 4, "unsigned int": 4, "long": 8, "double": 8, "bool": 1}
_REPLACED = {
    "metal": (
        (r"(?m)^(\s*)threadgroup (?=__attribute__)", r"\1static "),
        (r"threadgroup __attribute__\(\(aligned\(16\)\)\) ", ""),
    ),
    "hip": (
        (r"__attribute__\(\(shared, aligned\(16\)\)\)", "static __attribute__((aligned(16))) "),
        (
            r"typedef ([\w ]+) (\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\);",
            r"typedef emulated_vector<\1, \3> \2;",
        ),
    ),
}


def _signature(text: str, language: str) -> tuple[str, int, int]:
    """A kernel's name, how many buffers it has, and how many threads a group of it may have."""
    if language == "metal":
        match = re.search(r"^kernel void (\w+)\((.*)\) \{$", text, re.MULTILINE)
        assert match is not None, text
        return match[1], match[2].count("device "), MOST_THREADS
    bound = r"amdgpu_flat_work_group_size\(1, (\d+)\)\)\)"
    match = re.search(rf"^extern \"C\" .*{bound} (\w+)\((.*)\) \{{$", text, re.MULTILINE)
    assert match is not None, text
    return match[2], match[3].count("*"), int(match[1])


@cache
def _threads() -> ctypes.CDLL:
    """The library that runs kernels; they look their names up in it."""
    path = _built((HERE / "threads.cpp").read_text(), "-U_FORTIFY_SOURCE")
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.emulated_launch.restype = ctypes.c_char_p
    return library


@cache
def _folder() -> Path:
    given = os.environ.get("TORCH_TINY_EMULATED")
    return Path(given) if given else Path(tempfile.mkdtemp(prefix="torch_tiny_emulated_"))


def _built(text: str, *more: str) -> Path:
    flags = (*FLAGS, *more)
    name = hashlib.sha256("\n".join((*flags, text)).encode()).hexdigest()[:24]
    path = _folder() / f"{name}.so"
    if not path.exists():
        new = _folder() / f"{name}.{os.getpid()}"
        command = ["g++", *flags, "-x", "c++", "-", "-o", str(new)]
        done = subprocess.run(command, input=text, text=True, capture_output=True)
        if done.returncode:
            raise CompileError(f"{done.stderr[:4000]}\n{text[-4000:]}")
        new.rename(path)
    return path
