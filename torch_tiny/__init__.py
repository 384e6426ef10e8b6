"""torch_tiny: the PyTorch device "tiny".

Importing this package registers the device; an installed torch_tiny is imported by `import torch`
itself. `torch.tiny` is `torch_tiny.device`, and `report()` tells what the device has done.
"""

import os
import sys
import warnings

__all__ = ["__version__", "explain", "from_tinygrad", "report", "to_tinygrad"]
__version__ = "0.1.0"

_imported = False


def _autoload() -> None:
    """Entry point of `torch.backends`: a core that cannot be loaded must not take torch with it."""
    if not _imported:
        return  # `import torch_tiny` came first and still waits for torch; it registers
    if _must_be_asked_for():
        del sys.modules[__name__]  # so that an `import torch_tiny` registers
        return
    try:
        _register()
    except ImportError as error:
        warnings.warn(f'device="tiny" is not available: {error}', stacklevel=2)
        del sys.modules[__name__]  # so that an `import torch_tiny` raises the error


import torch  # noqa: E402  (calls the entry point above)

from torch_tiny.explain import explain  # noqa: E402
from torch_tiny.report import report  # noqa: E402
from torch_tiny.tinygrad_interop import from_tinygrad, to_tinygrad  # noqa: E402


def _register() -> None:
    """Make "tiny" a device of torch: the core, torch.tiny, Tensor.tiny() and the patches."""
    from torch_tiny import core, hosts, rng

    if hasattr(torch, "tiny"):
        return
    core.load(hosts.from_environment(), rng.from_environment())

    from torch.utils import backend_registration

    from torch_tiny import (
        at_exit,
        device,
        distributed,
        dynamo,
        failures,
        interop,
        modules,
        optimizer,
    )
    from torch_tiny.engine import service

    backend_registration.rename_privateuse1_backend("tiny")
    torch._register_device_module("tiny", device)
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    # Autocast picks the type that it picks on the memory itself.
    memory = "cpu" if device.is_portable(0) else torch.device(device.device_name(0)).type
    torch.set_autocast_dtype("tiny", torch.get_autocast_dtype(memory))
    interop.install()
    failures.install()
    at_exit.install()
    distributed.install()
    dynamo.install()
    modules.install()
    optimizer.install()
    service.install()
    if torch.version.cuda is not None:
        from torch_tiny.engine import cuda_random

        cuda_random.install()
    if any(device.is_portable(index) for index in range(device.device_count())):
        from torch_tiny.portable import service as portable_service

        portable_service.install()


def _must_be_asked_for() -> bool:
    """PyTorch's autograd serves one accelerator: with tiny registered, CUDA's backward raises."""
    from torch_tiny import hosts

    return hosts.VARIABLE not in os.environ and hosts.why_no_cuda() is None


# While torch is still being imported it calls _autoload next, which knows what to do on errors.
if not getattr(torch.__spec__, "_initializing", False):
    _register()
_imported = True
