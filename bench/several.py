"""Six hot functions in one process: each is compiled, none fails, none is slower than eager.

    OMP_WAIT_POLICY=passive python -m bench.several --threads 1 2 --check

All are hot at the same time, as the parts of a program are. A ratio is tiny's time over the CPU's,
the median of alternating blocks.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import torch_tiny
from bench import inside

BLOCKS = 41
BLOCK_SECONDS = 0.02

Function = Callable[[Tensor], Tensor]


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    return x - torch.logsumexp(x, 1, keepdim=True)


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


def gated(x: Tensor) -> Tensor:
    return F.gelu(x) * torch.sigmoid(x + 1)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)


def huber(x: Tensor) -> Tensor:
    size = x.abs()
    return torch.where(size < 1, x * x / 2, size - 0.5).mean(1)


FUNCTIONS: dict[Function, tuple[int, int]] = {
    softmax: (256, 1000),
    log_softmax: (1024, 512),
    standardized: (64, 4096),
    gated: (2048, 333),
    rms_norm: (512, 2048),
    huber: (128, 7777),
}


def main() -> int:
    """Measure and print a line for each function; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.several", description=__doc__)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--check", action="store_true", help="fail if one is slower, or failed")
    options = parser.parse_args()
    ratios = [ratio for threads in options.threads for ratio in _measured(threads)]
    report = torch_tiny.report()
    print(f"compiled {report.compiles} traces, {len(report.failures)} failures")
    return 1 if options.check and (max(ratios) > 1 or report.failures) else 0


def _measured(threads: int) -> list[float]:
    torch.set_num_threads(threads)
    given = {function: torch.randn(shape) for function, shape in FUNCTIONS.items()}
    there = {function: x.to("tiny") for function, x in given.items()}

    def all_once() -> None:
        for function, x in there.items():
            torch.testing.assert_close(function(x).cpu(), function(given[function]))

    begin = time.monotonic()
    if not inside.settle(all_once):
        raise RuntimeError("the device did not settle")
    print(f"{threads} threads: settled after {time.monotonic() - begin:.1f} s")
    ratios = []
    for function, x in given.items():
        ours, theirs = _times(function, there[function]), _times(function, x)
        ratios.append(statistics.median(a() / b() for a, b in [(ours, theirs)] * BLOCKS))
        shape = "x".join(map(str, x.shape))
        print(f"  {function.__name__:<14}{shape:<12}{ratios[-1]:.2f}", flush=True)
    return ratios


def _times(function: Function, x: Tensor) -> Callable[[], float]:
    """What takes one block and says how many seconds a step of it took."""
    synchronize = torch.get_device_module(x.device).synchronize

    def block(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            result = function(x)  # kept until it is there: nobody computes what is dropped
            synchronize()
            del result
        return (time.perf_counter() - begin) / steps

    steps = max(1, round(BLOCK_SECONDS / block(5)))
    return lambda: block(steps)


if __name__ == "__main__":
    sys.exit(main())
