"""A fast selection of the suite on portable devices, each in a run of pytest of its own.

    python -m tests.on_devices                on OpenCL and WebGPU, those that are there
    python -m tests.on_devices webgpu -x      on one of them, with options for pytest
    PYTHONPATH=tests/emulated python -m tests.on_devices metal amd    in the emulation

python -m tests.devices runs all of the operator database there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KINDS = ("cl", "webgpu")
EMULATED = ("metal", "amd")
PROBE = 'import torch, torch_tiny; print((torch.ones(3, device="tiny") + 1).sum().item())'

# One of each family of kernels. What fails is in expected_failures.py.
OPERATORS: dict[str, tuple[str, ...]] = {
    "forward": (
        *("add", "where", "std", "softmax", "sort", "topk", "cumsum", "gather", "scatter_add"),
        *("unique", "masked_select", "fft.fft", "linalg.svd", "nn.functional.conv2d", "to_sparse"),
    ),
    "view": ("diagonal", "unfold", "as_strided", "transpose", "expand"),
    "inplace": ("mul", "clamp", "masked_fill", "index_fill", "tril", "cumprod"),
    "backward": (
        *("matmul", "prod", "diag_embed", "linalg.solve", "nn.functional.gelu"),
        *("nn.functional.cross_entropy", "nn.functional.max_pool2d", "nn.functional.layer_norm"),
        "nn.functional.scaled_dot_product_attention",
    ),
    "second_order": (
        *("mul", "tanh", "logsumexp", "trace", "diagonal_scatter", "linalg.inv", "linalg.cholesky"),
        "nn.functional.conv2d",
    ),
}
FILES = (
    "tests/test_diagonal.py",
    "tests/test_autograd.py",
    "tests/test_regressions.py",
    "tests/test_programs.py",
)
# They call a function thousands of times, or take hundreds of cases through the compiler.
SLOW = (
    "tests/test_diagonal.py::test_gradients_of_first_and_second_order",
    "tests/test_diagonal.py::test_views_and_writes",
    "tests/test_diagonal.py::test_embedding_is_the_inverse",
    "tests/test_diagonal.py::test_diag_and_diagflat",
    "tests/test_autograd.py::test_gradcheck_of_a_network",
    "tests/test_autograd.py::test_deep_graph",
)


def main() -> int:
    given = sys.argv[1:]
    kinds = [arg for arg in given if arg in KINDS + EMULATED] or KINDS
    options = [arg for arg in given if arg not in KINDS + EMULATED]
    return max(run(kind, options) for kind in kinds)


def run(kind: str, options: list[str]) -> int:
    environment = {
        **os.environ,
        "TORCH_TINY_DEVICES": kind,
        "TORCH_TINY_OPDB_SAMPLES": "2",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True)
    if probe.returncode:
        why = probe.stderr.decode().splitlines()[-1]
        print(f"no {kind}: {why}; see make devices", flush=True)
        return 0
    print(f"a part of the suite on {kind}", flush=True)
    slow = [f"--deselect={name}" for name in SLOW]
    command = [sys.executable, "-m", "pytest", *options, *items(), *FILES, *slow]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def items() -> list[str]:
    return [
        f"tests/test_opdb.py::test_{check}[{op}-float32]"
        for check, operators in OPERATORS.items()
        for op in operators
    ]


if __name__ == "__main__":
    sys.exit(main())
