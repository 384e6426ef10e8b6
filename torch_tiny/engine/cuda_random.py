"""Kernels that draw from the portable stream on a GPU: the formulas of csrc/random/philox.h.

They are compiled when a process draws for the first time, and kept on disk.
"""

import re
from pathlib import Path

import torch

from torch_tiny.engine import cuda_compile
from torch_tiny.engine.cache import PlanFiles
from torch_tiny.engine.plan import Code, Remembered, digest
from torch_tiny.engine.settings import from_environment

# What philox.h takes from the standard library, which NVRTC does not have.
_LIBRARY = """
typedef signed char int8_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;
namespace std {
template <typename T, size_t N> struct array {
  T items[N];
  constexpr T& operator[](size_t i) { return items[i]; }
  constexpr const T& operator[](size_t i) const { return items[i]; }
  constexpr const T& back() const { return items[N - 1]; }
  constexpr size_t size() const { return N; }
};
template <typename T, typename F> T bit_cast(F from) {
  union { F from; T to; } both{from};
  return both.to;
}
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
template <typename T> T clamp(T x, T low, T high) { return min(max(x, low), high); }
inline float sqrt(float x) { return ::sqrtf(x); }
inline double sqrt(double x) { return ::sqrt(x); }
inline float ceil(float x) { return ::ceilf(x); }
inline double ceil(double x) { return ::ceil(x); }
}
"""

_KERNEL = """
extern "C" __global__ void draw_{name}(
    {type}* out, const double* chances, int64_t count, uint64_t seed, uint64_t offset,
    double a, double b, uint64_t range, int64_t first, int bits) {{
  typedef {type} T;
  using namespace tiny::philox;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {{
    const Words w = words({{seed, offset}}, i);
    out[i] = {value};
  }}
}}
"""

_UNIFORM = "T(int(w[0] >> (32 - bits))) * (1.0F / T(1U << bits))"
_UNIFORM_DOUBLE = "uniform_double(w[0], w[1])"
_EXPONENTIAL_DOUBLE = "negative_log(uniform_above_zero(w[0], w[1]))"

# Name -> type, value. The names are those of csrc/random/cuda_draws.cpp.
_VALUES = {
    "uniform_float": ("float", f"{_UNIFORM} * (T(b) - T(a)) + T(a)"),
    "uniform_double": ("double", f"{_UNIFORM_DOUBLE} * (b - a) + a"),
    "normal_float": ("float", "normal(w[0], w[2]) * T(b) + T(a)"),
    "normal_double": ("double", "normal_double(w) * b + a"),
    "log_normal_float": ("float", "tiny::philox::exp(normal(w[0], w[2]) * T(b) + T(a))"),
    "log_normal_double": ("double", "tiny::philox::exp(normal_double(w) * b + a)"),
    "exponential_float": ("float", "exponential(w[0]) / T(a)"),
    "exponential_double": ("double", f"{_EXPONENTIAL_DOUBLE} / a"),
    "cauchy_float": ("float", "cauchy(w[0]) * T(b) + T(a)"),
    "cauchy_double": ("double", "cauchy_double(w) * b + a"),
    "geometric_float": ("float", "std::ceil(exponential(w[0]) / T(b))"),
    "geometric_double": ("double", f"std::ceil({_EXPONENTIAL_DOUBLE} / a)"),
    "bernoulli_float": ("float", "T(uniform(w[0]) < T(a))"),
    "chances_float": ("float", "T(double(uniform(w[0])) < chances[i])"),
    "chances_double": ("float", f"T({_UNIFORM_DOUBLE} < chances[i])"),
    "integers_long": ("int64_t", "int64_t(below(range, w[0], w[1]) + uint64_t(first))"),
}


def source() -> str:
    """All kernels, in CUDA C++."""
    formulas = (Path(__file__).parent.parent / "csrc" / "random" / "philox.h").read_text()
    formulas = re.sub(r"^#.*$", "", formulas, flags=re.MULTILINE)
    kernels = (
        _KERNEL.format(name=name, type=type_, value=value)
        for name, (type_, value) in _VALUES.items()
    )
    return "\n".join((_LIBRARY, formulas, *kernels))


def machine_code(index: int) -> bytes:
    """The kernels for a GPU."""
    major, minor = torch.cuda.get_device_capability(index)
    text, arch = source(), f"sm_{major}{minor}"
    folder = from_environment().cache
    known = Remembered(None if folder is None else PlanFiles(folder))
    key = digest(arch, text)
    if (found := known.load_code(key)) is not None:
        return found[1]
    code = cuda_compile.compile(text, arch, "--device-int128")
    known.store_code(key, Code([], [], [], [], [], [], text), code)
    return code


def install() -> None:
    """Tell the core where kernels come from."""
    from torch_tiny import _C

    _C.set_random_kernels(machine_code)
