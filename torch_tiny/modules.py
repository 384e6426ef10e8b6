"""`Module.to("tiny")` changes the parameters in place, as `Module.to("cuda")` does.

For a device from outside PyTorch makes new parameters, so that an optimizer made before, or a
second module that shares a weight, would be left with the old ones.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module, Parameter


def install() -> None:
    """Patch torch.nn.Module once."""
    original: Callable[..., Module] = Module._apply

    def apply(module: Module, fn: Callable[..., Any], recurse: bool = True) -> Module:
        before = dict(module._parameters)
        result = original(module, fn, recurse)
        for name, new in module._parameters.items():
            old = before.get(name)
            if new is not old and new is not None and old is not None and _crosses(old, new):
                module._parameters[name] = _in_place(old, new, name)
        return result

    Module._apply = apply  # type: ignore[method-assign]


def _crosses(old: Parameter, new: Parameter) -> bool:
    return (old.device.type == "tiny") != (new.device.type == "tiny")


def _in_place(old: Parameter, new: Parameter, name: str) -> Parameter:
    """Give the object `old` the tensor of `new`; it keeps its class and attributes."""
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError as error:
        warnings.warn(
            f"{name} is now a new parameter on {new.device}: make optimizers after moving, and "
            f"share weights again ({error})",
            stacklevel=4,
        )
        return new
    old.__class__, new.__class__ = new.__class__, old.__class__
    old.__dict__, new.__dict__ = new.__dict__, old.__dict__
    return old
