"""What every test shares: the device under test, and comparing it with its oracle.

The oracle is plain PyTorch on the memory of the device: the same kernels, so the same results. A
portable device has kernels of its own; there results are compared with the CPU's up to rounding.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import before_torch
import plain_cuda
import torch

from torch_tiny import _C
from torch_tiny.portable.kind import find_kind

# Another device may stand in for tiny, to try the tests themselves.
DEVICE = os.environ.get("TORCH_TINY_TEST_DEVICE", "tiny")
KIND = before_torch.KIND
ORACLE = "cuda" if KIND == "cuda" else "cpu"
PORTABLE = KIND not in ("cpu", "cuda")
HAS_FLOAT64 = not PORTABLE or torch.float64 not in find_kind(KIND).lacks

COMPILED = os.environ["TORCH_TINY_ENGINE"] == "uop"

# Whether kernels of our own take part, whose last digit may be another than the oracle's: then
# programs do not ask what hangs on it, unless they are to.
ROUNDS = "TORCH_TINY_TEST_STRICT" not in os.environ and (
    PORTABLE or os.environ["TORCH_TINY_ENGINE"] != "aten"
)

if ORACLE == "cuda":
    plain_cuda.install()
if DEVICE == "tiny":  # else code that writes nothing finds what it wrote the last time
    _C.fill_fresh_memory(0xA5)


def assert_same(
    actual: Any, expected: Any, *, strides: bool = True, offset: bool = True, values: bool = True
) -> None:
    """Assert that a tensor, or a structure of tensors, of the device equals the oracle's.

    Shape, dtype and layout always have to agree; strides, the storage offset and the values unless
    they are switched off. NaN equals NaN. Anything that is not a tensor is compared with `==`.
    """
    how = {"strides": strides, "offset": offset, "values": values}
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{type(actual)} for a tensor"
        _assert_same_tensor(actual, expected, **how)
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key], **how)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(actual) == len(expected), f"{len(actual)} results, not {len(expected)}"
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, **how)
    elif isinstance(expected, float | complex):
        if values:
            torch.testing.assert_close(actual, expected, equal_nan=True)
    else:
        assert actual == expected, f"{actual!r}, not {expected!r}"


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a strided tensor lie in the same place."""
    if tensor.is_contiguous():
        return False
    at = torch.tensor([tensor.storage_offset()])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = (at[:, None] + torch.arange(size) * stride).flatten()
    return at.unique().numel() < at.numel()


def largest_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest difference; infinite where one is a number and the other is not."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    result, truth = result.to(wide), truth.to(wide)
    same = (result == truth) | (result.isnan() & truth.isnan())
    return float((result - truth).abs().nan_to_num(torch.inf).masked_fill(same, 0).max())


def _assert_same_tensor(
    actual: torch.Tensor, expected: torch.Tensor, strides: bool, offset: bool, values: bool
) -> None:
    assert actual.shape == expected.shape, f"shape {actual.shape}, not {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, not {expected.dtype}"
    assert actual.layout == expected.layout, f"layout {actual.layout}, not {expected.layout}"
    if expected.layout == torch.strided:
        if strides:
            assert actual.stride() == expected.stride(), (
                f"stride {actual.stride()}, not {expected.stride()}, of shape {expected.shape}"
            )
        if offset:
            assert actual.storage_offset() == expected.storage_offset(), (
                f"storage offset {actual.storage_offset()}, not {expected.storage_offset()}"
            )
        assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg())
    if values:
        host, oracle = actual.detach().cpu(), expected.detach().cpu()
        if oracle.dtype == torch.complex32:  # which has no operator to compare with
            host, oracle = host.to(torch.complex64), oracle.to(torch.complex64)
        _compare(host, oracle)


def _close(host: torch.Tensor, oracle: torch.Tensor) -> None:
    if oracle.layout == torch.strided and torch.equal(host, oracle):
        return
    torch.testing.assert_close(host, oracle, equal_nan=True)


_compare = _close


@contextmanager
def compared_by(compare: Callable[[torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
    """Something else to do with the values of a tensor and of its oracle."""
    global _compare
    before, _compare = _compare, compare
    try:
        yield
    finally:
        _compare = before
