"""Sparse and quantized tensors: what works equals the oracle, what does not names the operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import numbers, only_on_cpu_memory, synchronize
from torch import Tensor
from util import ORACLE, assert_same

SPARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "coo_round_trip": lambda x: x.to_sparse().to_dense(),
    "csr_round_trip": lambda x: x.to_sparse_csr().to_dense(),
    "coo_values": lambda x: x.to_sparse().coalesce().values(),
    "coo_indices": lambda x: x.to_sparse().coalesce().indices(),
    "coo_constructor": lambda x: torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]], device=x.device), x[0, :2], (2, 2)
    ).to_dense(),
    "coo_times_dense": lambda x: torch.sparse.mm(x.to_sparse(), x.T),
    "coo_sum": lambda x: torch.sparse.sum(x.to_sparse(), 0).to_dense(),
    "coo_add": lambda x: (x.to_sparse() + x.to_sparse()).to_dense(),
    "csr_times_dense": lambda x: x.to_sparse_csr() @ x.T,
    "embedding_sparse_grad": lambda x: embedding_gradient(x),
    "sparse_adam": lambda x: sparse_adam(x),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :2]]).to_padded_tensor(0.0),
    "sparse_to_device": lambda x: x.cpu().to_sparse().to(x.device).to_dense(),
    "mkldnn": lambda x: x.to_mkldnn().to_dense(),
}

QUANTIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "quantize": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.qint8).dequantize(),
    "int_repr": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).int_repr(),
    "per_channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(3, device=x.device), torch.zeros(3, device=x.device), 0, torch.qint8
    ).dequantize(),
    "to_device": lambda x: (
        torch.quantize_per_tensor(x.cpu(), 0.1, 3, torch.qint8).to(x.device).dequantize()
    ),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
}


def embedding_gradient(x: Tensor) -> Tensor:
    weight = x.clone().requires_grad_()
    rows = torch.tensor([0, 2, 0], device=x.device)
    torch.nn.functional.embedding(rows, weight, sparse=True).sum().backward()
    return weight.grad.to_dense()


def sparse_adam(x: Tensor) -> Tensor:
    weight = torch.nn.Embedding.from_pretrained(x.clone(), freeze=False, sparse=True)
    weight(torch.tensor([0, 2], device=x.device)).square().sum().backward()
    torch.optim.SparseAdam(weight.parameters()).step()
    return weight.weight.detach()


def sample() -> Tensor:
    x = numbers(3, 4)
    return x * (x > 0)


def works_or_explains(function: Callable[[Tensor], Tensor], device: str) -> None:
    """The oracle's result, or an error that says which operator the device does not have."""
    try:
        result = function(sample().to(device))
        synchronize(device)
    except (NotImplementedError, RuntimeError) as error:
        assert "::" in str(error), f"names no operator: {error}"
        assert "INTERNAL ASSERT" not in str(error)
    else:
        assert_same(result, function(sample().to(ORACLE)), strides=False)
    assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse(name: str, device: str) -> None:
    works_or_explains(SPARSE[name], device)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name: str, device: str) -> None:
    works_or_explains(QUANTIZED[name], device)


@only_on_cpu_memory("CUDA does not have all of them")
def test_the_oracle_works() -> None:
    """On the CPU none of these raises, so what a device raises is the device's."""
    for function in (*SPARSE.values(), *QUANTIZED.values()):
        function(sample())
