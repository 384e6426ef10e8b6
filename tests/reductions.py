"""How exact reductions are: errors beside those of PyTorch's CPU kernels, against float64.

As a program: `python tests/reductions.py SIZE...` with the device and the engine in the environment
prints the worst ratio of errors for each kind of data, and fails above 4. With --large: up to 2^27.
"""

import math
import sys
from collections.abc import Callable, Iterator

import torch

MOST = 4.0  # times the error of the CPU
LARGE = (15_485_863, (1 << 24) - 1, (1 << 26) + 1, 1 << 27)
EPS = torch.finfo(torch.float32).eps

Dims = tuple[int, ...]
# Functions of the elements and the dimensions to reduce.
REDUCTIONS: dict[str, Callable[[torch.Tensor, Dims], torch.Tensor]] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "var": lambda x, dims: x.var(dims),
    "std": lambda x, dims: x.std(dims, correction=0),
    "norm": lambda x, dims: torch.linalg.vector_norm(x, dim=dims),
    "logsumexp": lambda x, dims: x.logsumexp(dims),
    "softmax": lambda x, dims: x.softmax(dims[-1]).amax(dims),
}


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def _counted(shape: tuple[int, ...], device: str) -> torch.Tensor:
    return torch.arange(math.prod(shape), device=device).reshape(shape)


# From memory, or computed where they are summed.
DATA: dict[str, Callable[[tuple[int, ...], str], torch.Tensor]] = {
    "uniform": lambda shape, device: _random(shape).to(device),
    "large mean": lambda shape, device: (_random(shape) + 1e5).to(device),
    "cancelling": lambda shape, device: (_random(shape) - 0.5).to(device),
    "constant": lambda shape, device: torch.full(shape, 0.1).to(device),
    "computed": lambda shape, device: (_counted(shape, device) % 7) + 1e5,
}


def shapes(size: int) -> Iterator[tuple[tuple[int, ...], Dims]]:
    """About `size` elements to a result: in one dimension, rows, columns and around the middle."""
    yield (size,), (0,)
    if size <= 1 << 16:
        yield (3, size), (1,)
        yield (size, 17), (0,)
        yield (5, 3, -(-size // 5)), (0, 2)


def orders(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same numbers in other orders: one result alone may be exact by luck."""
    yield x
    if x.dim() == 1:
        yield x.flip(0)
        yield x.roll(x.numel() // 3)
        yield x.roll(x.numel() // 7)


def ratio(ours: torch.Tensor, cpus: list[torch.Tensor], exact: torch.Tensor, floor: float) -> float:
    """Our largest error over that of the CPU, one unit in the last place, or the floor."""
    ours = ours.cpu().double()
    if not exact.isfinite().all():
        assert torch.equal(ours.isnan(), cpus[0].isnan())
        return 0.0
    unit = exact.abs() * EPS
    error = max((one.double() - exact).abs().max().item() for one in cpus)
    allowed = unit.clamp(min=max(floor, error, 1e-30))
    return ((ours - exact).abs() / allowed).max().item()


def measured(size: int, kind: str, device: str) -> dict[str, float]:
    """Ratios by reduction and shape, of the third time that each is played."""
    found = {}
    for shape, dims in shapes(size):
        x = DATA[kind](shape, "cpu")
        ours = [_played(kind, shape, dims, device) for _ in range(3)][-1]
        for (name, reduce), mine in zip(REDUCTIONS.items(), ours, strict=True):
            # Rounding each term by itself would change a sum by this much.
            floor = EPS * x.double().norm().item() if name == "sum" else 0.0
            exact = reduce(x.double(), dims)
            cpus = [reduce(ordered, dims) for ordered in orders(x)]
            found[f"{name} {shape}"] = ratio(mine, cpus, exact, floor)
    return found


def _played(kind: str, shape: tuple[int, ...], dims: Dims, device: str) -> list[torch.Tensor]:
    x = DATA[kind](shape, device)
    results = [reduce(x, dims) for reduce in REDUCTIONS.values()]
    return [result.cpu() for result in results]


def main(arguments: list[str]) -> None:
    sizes = LARGE if "--large" in arguments else tuple(map(int, arguments))
    for kind in DATA:
        for size in sizes:
            found = measured(size, kind, "tiny")
            worst = max(found, key=lambda name: found[name])
            print(f"{kind}, {size}: {found[worst]:.2f} ({worst})", flush=True)
            assert found[worst] <= MOST, found


if __name__ == "__main__":
    import torch_tiny  # noqa: F401

    main(sys.argv[1:])
