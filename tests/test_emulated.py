"""Metal and AMD, whose machines are not at hand: their kernels in an emulation on the CPU.

The kinds, the renderers and the engine are the real ones, and so is tinygrad's runtime of Metal;
the compilers are g++ (tests/emulated). What the hardware and its compilers do is not seen here.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import ROOT, needs_cpu_memory, needs_tiny
from harness import on_portable as run
from test_portable import test_halves_are_rounded_inside_a_kernel  # noqa: F401  (here too)

FOLDER = ROOT / "tests" / "emulated"
pytestmark = [
    needs_tiny,
    needs_cpu_memory,
    pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled by g++"),
]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(params=["metal", "amd"])
def kind(request: pytest.FixtureRequest, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """For programs in processes of their own."""
    path = os.pathsep.join((str(FOLDER), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TORCH_TINY_EMULATED", str(libraries))
    return str(request.param)


def test_programs_of_all_sorts(kind: str) -> None:
    code = """
def program(device):
    torch.manual_seed(0)
    x, y = torch.randn(64, 36).to(device), torch.randn(64, 36).to(device)
    i = torch.randint(-2**40, 2**40, (2, 33)).to(device)
    x[3, :5] = 7
    x.t()[::2].mul_(2)
    z = (x * 2 + y).softmax(1) @ y.t()
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4),
                                torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    loss = F.cross_entropy(model(x.view(64, 1, 6, 6)), torch.arange(64, device=device) % 3)
    loss.backward()
    optimizer.step()
    return [x, z, z.argmax(1), x.sort(1).values, z.cumsum(0), x > y, (y > 0).nonzero(), y.std(),
            i[0] * i[1], i[0] // (i[1] | 1), i[0] >> 3, i.int() * 3, i.short() + i.to(torch.int8),
            i.float(), z.half() * 3, z.bfloat16() + 1, loss.detach(),
            *(p.grad for p in model.parameters())]
for ours, theirs in zip(program("tiny"), program("cpu")):
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
torch.manual_seed(3)
a, b = torch.rand(100, device="tiny"), torch.randn(100, device="tiny").tolist()
assert 0 <= a.min() and a.max() < 1 and len(set(b)) == 100
print([f["reason"] for f in torch.tiny.metrics()["fallbacks"]])
"""
    assert run(kind, code) == ["[]"]


def test_factorizations_and_their_derivatives(kind: str) -> None:
    """Groups of threads that meet at barriers."""
    code = """
def program(device):
    a = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0)).to(device)
    a.requires_grad_()
    s = a @ a.mT + torch.eye(5, device=device)
    values, vectors = torch.linalg.eigh(s)
    q, r = torch.linalg.qr(a)
    results = [torch.linalg.cholesky(s), torch.linalg.solve(s, a), torch.linalg.det(a), values,
               vectors.abs(), q.abs(), r.abs(), torch.linalg.svdvals(a), torch.linalg.inv(s)]
    (slope,) = torch.autograd.grad(sum(one.sum() for one in results), a)
    return [*(one.detach() for one in results), slope]
for ours, theirs in zip(program("tiny"), program("cpu")):
    torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-3, atol=2e-4)
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == []


def test_kernels_of_many_buffers_and_copies_of_few_bytes(kind: str) -> None:
    """Metal's kernels have 31 buffers at most, and tinygrad copies all of a buffer of Metal's."""
    code = """
parts = [torch.full((3,), float(i)).to("tiny") for i in range(50)]
assert sum(p * 2 for p in parts).tolist() == [2450.0] * 3
flag = torch.tensor([True]).to("tiny")
flag.logical_not_()
print(flag.tolist(), torch.tensor(3, dtype=torch.uint8).to("tiny").item())
x = torch.arange(100_000).to("tiny")
assert torch.equal((x + 1).cpu(), torch.arange(1, 100_001))
try:
    x[:4][torch.tensor([9]).to("tiny")].tolist()
except IndexError:
    print("an index")
"""
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == ["[False] 3", "an index"]


def test_memory_is_shared_with_tinygrad(kind: str) -> None:
    code = """
x = torch.arange(6.0).to("tiny")
t = torch_tiny.to_tinygrad(x)
x.mul_(2)
torch.tiny.synchronize()
print((t + 1).tolist())
y = torch_tiny.from_tinygrad((t * 3).realize())
print((y + 1).tolist())
"""
    first = [2.0 * i + 1 for i in range(6)]
    assert run(kind, code, TORCH_TINY_FALLBACK="error") == [
        str(first),
        str([6.0 * i + 1 for i in range(6)]),
    ]


# --- functions, one by one ---

ODD = (0.0, 1.0, 0.5, 2.0, 3.0, 2.5, 10.0, 88.8, 1e-30, 2.0**24, 1e10, 3e38, float("inf"))


def test_functions_are_those_of_the_cpu(kind: str) -> None:
    """Within 5 units in the last place of a float32; infinities, NaN and zeros to the bit."""
    from torch_tiny.portable.kind import C_BINARY, C_UNARY

    rng = np.random.default_rng(0)
    odd = np.array([*ODD, *(-x for x in ODD), float("nan")], np.float32)
    sizes = (1e-6, 1e-3, 1, 10, 1e4, 1e10)
    random = [rng.standard_normal(300) * size for size in sizes]
    x, y = (np.concatenate([odd, *random]).astype(np.float32) for _ in range(2))
    left = np.concatenate([np.repeat(odd, len(odd)), rng.permutation(x)])
    right = np.concatenate([np.tile(odd, len(odd)), rng.permutation(y)])
    names = [*C_UNARY, *C_BINARY]
    for name, got in zip(names, _computed(kind, names, x, left, right), strict=True):
        given = (left, right) if name in C_BINARY else (x,)
        exact = _exact(name, given)
        with np.errstate(all="ignore"):
            _assert_close(name, got[: len(exact)], exact, given)


def _computed(kind: str, names: list[str], *given: np.ndarray) -> np.ndarray:
    """A row for each function, by a kernel of the kind that calls them all."""
    from torch_tiny.portable.kind import C_BINARY, find_kind
    from torch_tiny.uops import dtypes

    sys.path.append(str(FOLDER))
    from emulated_compiler import Kernel, compiled

    x, left, right = given
    count = len(left)
    lines = []
    for i, name in enumerate(names):
        operands = ("(data2[i])", "(data3[i])") if name in C_BINARY else ("(data1[i])",)
        text = find_kind(kind).template(name, dtypes.float32).format(*operands)
        length = count if name in C_BINARY else len(x)
        lines.append(f"if (i < {length}) data0[{i * count} + i] = {text};")
    space = {"metal": "device ", "amd": ""}[kind]
    data = ", ".join(f"{space}float *data{i}" for i in range(4))
    text = _HEADS[kind].replace("DATA", data) + "\n".join((*lines, "}"))
    language = {"metal": "metal", "amd": "hip"}[kind]
    kernel = Kernel(compiled(find_kind(kind).finish(text), language, 0))
    out = np.full((len(names), count), np.nan, np.float32)
    kernel.run([one.ctypes.data for one in (out, x, left, right)], (count, 1, 1), (1, 1, 1))
    return out


_HEADS = {
    "metal": """#include <metal_stdlib>
using namespace metal;
kernel void k(DATA, uint3 gid, uint3 lid) {
int i = gid.x;
""",
    "amd": """typedef long unsigned int size_t;
extern "C" unsigned int __ockl_get_group_id(size_t);
extern "C" void __attribute__((amdgpu_flat_work_group_size(1, 1))) k(DATA) {
int i = __ockl_get_group_id(0);
""",
}


def _exact(name: str, given: tuple[np.ndarray, ...]) -> np.ndarray:
    """By the C library, in double."""
    single = name == "nextafter"
    function = getattr(ctypes.CDLL("libm.so.6"), f"{name}f" if single else name)
    number = ctypes.c_float if single else ctypes.c_double
    function.restype, function.argtypes = number, [number] * len(given)
    return np.array([function(*map(float, one)) for one in zip(*given, strict=True)])


def _assert_close(
    name: str, got: np.ndarray, exact: np.ndarray, given: tuple[np.ndarray, ...]
) -> None:
    rounded = exact.astype(np.float32)
    tiny = (np.abs(exact) < 2e-38) & (exact != 0)  # which a device may flush
    usual = np.isfinite(rounded) & np.isfinite(got) & ~tiny & (exact != 0)
    unit = np.spacing(np.abs(rounded))
    if name == "lgamma":  # it crosses zero left of zero, where formulas keep the size of the error
        unit = np.where(given[0] < 0, np.maximum(unit, 2.0**-23), unit)
    error = np.where(usual, np.abs(got - exact) / unit, 0)
    worst = error.argmax()
    assert error[worst] <= 5, (name, [one[worst] for one in given], got[worst], exact[worst])
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded))
    wrong = ~usual & ~tiny & ~same & ~(np.isnan(got) & np.isnan(rounded))
    assert not wrong.any(), (name, [one[wrong] for one in given], got[wrong], rounded[wrong])


def test_clang_makes_code_for_an_amd_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler that AMD's is made of takes the kernels, and rounds a*b+c twice."""
    clang = _clang()
    if clang is None:
        pytest.skip("no clang that knows AMD's GPUs")
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    all_sorts = """
x = torch.rand(64, 8).to("tiny")
for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool):
    (x.to(dtype).mul(3) + 1).sum().item()
y = x.erf() + x.pow(1.5) + x.lgamma().sin() + torch.atan2(x, x + 1)
(y @ y.t()).softmax(0).tolist(), (x.int() // 3).sort(0).values.tolist()
torch.linalg.cholesky(x[:8] @ x[:8].t() + torch.eye(8).to("tiny")).tolist()
"""
    one = "a = torch.ones(9).to('tiny'); (a * a + a).tolist()"
    for name, code in {"all": all_sorts, "one": one}.items():
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("TORCH_TINY_EMULATED", str(folder))
        assert run("amd", code, TORCH_TINY_FALLBACK="error") == []
        texts = list(folder.glob("*.hip"))
        assert texts
        assembly = "".join(_assembled(clang, text) for text in texts)
    assert "v_mul_f32" in assembly
    assert "v_fma" not in assembly


_FOR_AMD = ("-x", "hip", "--offload-arch=gfx1100", "--cuda-device-only", "-nogpulib", "-nogpuinc")


def _clang() -> str | None:
    """A clang that knows the GPU of the emulation."""
    on_path = [found for found in [shutil.which("clang")] if found is not None]
    for clang in (*on_path, *map(str, sorted(Path("/usr/lib").glob("llvm-*/bin/clang")))):
        command = [clang, *_FOR_AMD, "-S", os.devnull, "-o", os.devnull]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return clang
    return None


def _assembled(clang: str, text: Path) -> str:
    command = [clang, *_FOR_AMD, "-std=c++14", "-O3", "-w", "-S", str(text), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{text.read_text()}"
    return done.stdout


def test_texts_forbid_contraction_and_meet_over_all_memory(kind: str) -> None:
    """g++ does not see either: that a*b+c is rounded twice, and what a barrier covers."""
    from torch_tiny.portable.kind import find_kind

    head = "using namespace metal;\n"
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    text = find_kind(kind).finish(f"{head}{barrier}")
    assert "#pragma clang fp contract(off)" in text
    if kind == "metal":
        assert "mem_flags::mem_device" in text
