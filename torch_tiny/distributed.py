"""`init_process_group()` without a backend: what PyTorch takes where there is no tiny device.

PyTorch goes by the accelerator, and would refuse the one that has no backend of its own, also to a
program that never uses it. A backend that was registered for tiny comes beside the others.
"""

from typing import Any

import torch


def install() -> None:
    """Patch torch.distributed once."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    original = BackendConfig.__init__

    def init(config: BackendConfig, backend: Any) -> None:
        if str(backend) == Backend.UNDEFINED and torch._C._get_accelerator().type == "tiny":
            backend = _by_device(Backend.default_device_backend_map)
        original(config, backend)

    BackendConfig.__init__ = init  # type: ignore[assignment, method-assign]


def _by_device(backends: dict[str, str]) -> str:
    """As in "cpu:gloo,cuda:nccl"."""
    kinds = ["cpu", "cuda", "tiny"] if torch.cuda.is_available() else ["cpu", "tiny"]
    return ",".join(f"{kind}:{backends[kind]}" for kind in kinds if kind in backends)
