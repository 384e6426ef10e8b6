"""The known gaps: what the device does not do as its oracle does, and why.

Each entry of GAPS stands for one item of test_opdb.py; one that passes, or matches none, fails the
run. COMPILED_GAPS are those of test_opdb_compiled.py beside them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    """One item that fails: `op` with its variant ("linalg.det.singular"), check and dtype.

    `kind` narrows it to one memory ("cpu", "cuda"), `torch` to versions (">=2.13", "<2.12").
    """

    op: str
    check: str
    dtype: str
    reason: str
    kind: str | None = None
    torch: str | None = None


_STRIDED = "tiny has strided tensors only; the error names the operator"
_RUNNING = "CUDA drops the update of running statistics that are not contiguous; tiny keeps it"
_FUSED = "CUDA's fused kernel is chosen by the device's name; an empty result has other strides"
_ACCUMULATION = "PyTorch chooses the accumulation type by the name of the device, in Python"
_CHUNKED = ("linear_cross_entropy.chunked", "linear_cross_entropy.chunked_none")


def _sparse(op: str, check: str, *dtypes: str, kind: str | None = None) -> list[Gap]:
    return [Gap(op, check, dtype, _STRIDED, kind) for dtype in dtypes]


GAPS: list[Gap] = [
    *_sparse("to_sparse", "forward", "float32", "complex64", "int64", "bool", "bfloat16"),
    *_sparse("to_sparse", "noncontiguous", "float32"),
    *_sparse("to_sparse", "backward", "float32"),
    *_sparse("to_sparse", "second_order", "float32"),
    *_sparse("sparse.sampled_addmm", "forward", "float32", "complex64"),
    *_sparse("sparse.sampled_addmm", "noncontiguous", "float32"),
    *_sparse("sparse.sampled_addmm", "backward", "float32"),
    *_sparse("sparse.sampled_addmm", "second_order", "float32"),
    *_sparse("sparse.mm.reduce", "forward", "float32", "bfloat16"),
    *_sparse("sparse.mm.reduce", "noncontiguous", "float32"),
    *_sparse("sparse.mm.reduce", "backward", "float32", kind="cpu"),  # CUDA has no kernel
    Gap("nn.functional.batch_norm", "noncontiguous", "float32", _RUNNING, "cuda"),
    Gap("nn.functional.batch_norm.without_cudnn", "noncontiguous", "float32", _RUNNING, "cuda"),
    Gap("nn.functional.rms_norm", "forward", "float32", _FUSED, "cuda"),
    Gap("nn.functional.rms_norm", "forward", "bfloat16", _FUSED, "cuda"),
    Gap("nn.functional.rms_norm", "noncontiguous", "float32", _FUSED, "cuda"),
    *(
        Gap(f"nn.functional.{op}", "forward", "bfloat16", _ACCUMULATION, "cpu", ">=2.13")
        for op in _CHUNKED
    ),
]

_SIGNS = "an eigenvector's sign is left open, and the sample does not take it out"
_CHANCE = "of matrices with a large norm either float32 result is off; the CPU's happens to be less"

_ROUNDED = "sums in another order: an error of 9.46e-05, where PyTorch's kernel has one of 9.39e-05"

COMPILED_GAPS: list[Gap] = [
    Gap("linalg.eigh", "forward", "float32", _SIGNS),
    Gap("matrix_exp", "forward", "float32", _CHANCE),
    Gap("nn.functional.conv_transpose3d", "forward", "complex64", _ROUNDED),
]
