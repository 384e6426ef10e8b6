"""`torch.compile` with its default backend: Inductor has no code for this device.

It needs none: what a captured graph calls is recorded, and compiled as any other trace is.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def install() -> None:
    """Patch torch.compile's way to Inductor once."""
    wrapper = torch._TorchCompileInductorWrapper
    original: Callable[..., Any] = wrapper.__call__

    def compile_graph(self: Any, graph: Any, inputs: Any, **how: Any) -> Any:
        if _is_on_tiny(graph, inputs):
            return graph.forward
        return original(self, graph, inputs, **how)

    wrapper.__call__ = compile_graph  # type: ignore[assignment, method-assign]


def _is_on_tiny(graph: Any, inputs: Any) -> bool:
    """Whether a captured graph is given, holds or makes a tiny tensor."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    leaves = pytree.tree_leaves([inputs, values])
    return any(isinstance(leaf, Tensor) and leaf.device.type == "tiny" for leaf in leaves)
