"""CUDA C++ to machine code with NVRTC, which comes with PyTorch for CUDA."""

import ctypes
import ctypes.util
import functools
import importlib.util
import os
from pathlib import Path

# Not contracted: a region's operators round like PyTorch's, each on its own.
OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--device-as-default-execution-space",
    "--disable-warnings",
)

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")


def compile(source: str, arch: str, *more: str) -> bytes:  # noqa: A001
    """The cubin of `source` for an architecture such as sm_90; raises with NVRTC's words.

    more: options of NVRTC beside the usual ones.
    """
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    text = source.encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"region.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in (*OPTIONS, *more))]
        table = (ctypes.c_char_p * len(options))(*options)
        if nvrtc.nvrtcCompileProgram(program, len(options), table):
            log = _bytes(program, "ProgramLog")
            raise RuntimeError(f"NVRTC failed:\n{log.rstrip(bytes(1)).decode()[:2000]}")
        return _bytes(program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def version() -> str:
    """Of NVRTC; "" if there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    except OSError:
        return ""
    return f"NVRTC {major.value}.{minor.value}"


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError("no libnvrtc was found: pip install nvidia-cuda-nvrtc-cu12, or a CUDA toolkit")


def _candidates() -> list[str]:
    """What is named by TORCH_TINY_NVRTC, what is beside PyTorch, what the system has."""
    given = os.environ.get("TORCH_TINY_NVRTC")
    roots: list[Path] = []
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        if spec is not None:
            roots += [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = [
        str(path)
        for root in roots
        for pattern in ("lib", "*/lib")
        for name in _NAMES
        for path in root.glob(f"{pattern}/{name}")
    ]
    system = [f"{folder}/{name}" for folder in _FOLDERS for name in _NAMES]
    return [*([given] if given else []), *found, *_NAMES, *system]


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    nvrtc = _nvrtc()
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, data))
    return data.raw


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC: error {status}")
