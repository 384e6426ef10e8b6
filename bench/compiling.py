"""What compiling costs on networks as people train them, from an empty cache.

    OMP_WAIT_POLICY=passive python -m bench.compiling [--only NAME ...] [--threads N] [--json FILE]

Each network trains in a process of its own until nothing is left to compile or to choose. Told are
the processor seconds of the worker and its gcc, the seconds until the last plan was installed, a
step's time before anything was compiled and at the end over eager's, timed in turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_SECONDS = 300.0
QUIET_SECONDS = 2.0
TURNS = 15
BLOCK_SECONDS = 0.1

Step = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compiling", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", choices=NETWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.inside:
        print(json.dumps(measured(NETWORKS[options.inside])))
        return 0
    print(
        f"{'network':<16}{'CPU s':>8}{'until':>8}{'plans':>7}{'failed':>8}{'first':>9}{'last':>9}"
    )
    found = {}
    for name in options.only:
        found[name] = one = _in_process(name, options.threads)
        print(
            f"{name:<16}{one['cpu']:>8.2f}{one['until']:>8.1f}{one['plans']:>7}"
            f"{one['failed']:>8}{one['first']:>9.2f}{one['last']:>9.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def measured(make: Callable[[str], Step]) -> dict[str, Any]:
    """Train until everything is compiled and chosen; then in turns with eager PyTorch."""
    import torch_tiny  # noqa: F401
    from torch_tiny import _C
    from torch_tiny.engine import uop

    ours, theirs = make("tiny"), make("cpu")
    for _ in range(3):
        theirs()
    engine = uop.engine
    assert engine is not None
    eager = statistics.median(_seconds(theirs) for _ in range(5))
    ours()
    first = statistics.median(_seconds(ours) for _ in range(3)) / eager
    begin = changed = time.monotonic()
    seen, cpu = None, 0.0
    while (now := time.monotonic()) - begin < MOST_SECONDS and now - changed < QUIET_SECONDS:
        ours()
        state = (engine.counts.compiles, engine.counts.failures, _undecided(_C))
        if state != seen or engine.counts.waiting:
            seen, changed = state, now
        cpu = max(cpu, _cpu_seconds(engine._worker.pid))
    ratios = []
    for _ in range(TURNS):
        mine, other = _block(ours), _block(theirs)
        ratios.append(mine / other)
    return {
        "cpu": cpu,
        "until": changed - begin,
        "plans": engine.counts.compiles,
        "failed": engine.counts.failures,
        "first": first,
        "last": statistics.median(ratios),
    }


# --- networks ---


class Block(nn.Module):
    """A layer of a transformer, with its norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norm1(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int = 256, words: int = 1000, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden: Tensor = self.norm(self.blocks(self.words(x) + self.places(places)))
        result: Tensor = self.head(hidden)
        return result


class Residual(nn.Module):
    """Two convolutions with norms, beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.way(x) + self.shortcut(x))


def _training(
    net: nn.Module, device: str, inputs: Tensor, labels: Tensor, clip: bool, adamw: bool = True
) -> Step:
    net = net.to(device)
    x, y = inputs.to(device), labels.to(device)
    optimizer = (torch.optim.AdamW if adamw else torch.optim.Adam)(net.parameters(), lr=1e-3)

    def step() -> None:
        loss = F.cross_entropy(net(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def _cnn(device: str) -> Step:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
    )
    labels = torch.randint(10, (64,))
    return _training(net, device, torch.randn(64, 1, 8, 8), labels, clip=False, adamw=False)


def _resnet(device: str) -> Step:
    torch.manual_seed(0)
    stages = []
    for before, after, stride in ((32, 32, 1), (32, 64, 2), (64, 128, 2)):
        stages += [Residual(before, after, stride), Residual(after, after, 1)]
    stem = (nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    net = nn.Sequential(*stem, *stages, *head)
    return _training(net, device, torch.randn(8, 3, 64, 64), torch.randint(10, (8,)), clip=True)


def _gpt(layers: int) -> Callable[[str], Step]:
    def make(device: str) -> Step:
        torch.manual_seed(0)
        words = torch.randint(1000, (4, 64))
        return _training(Transformer(layers), device, words, words.roll(-1, 1), clip=True)

    return make


def _adamw(count: int) -> Callable[[str], Step]:
    shapes = ((64, 64), (128, 64), (64,), (3, 64, 3), (256,))

    def make(device: str) -> Step:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shapes[i % 5]).to(device)) for i in range(count)]
        for one in parameters:
            one.grad = torch.randn(one.shape).to(device)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)

        def step() -> None:
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            parameters[0][0].sum().item()

        return step

    return make


NETWORKS: dict[str, Callable[[str], Step]] = {
    "cnn": _cnn,
    "resnet": _resnet,
    "adamw_10": _adamw(10),
    "adamw_100": _adamw(100),
    "adamw_1000": _adamw(1000),
    "gpt_4": _gpt(4),
    "gpt_12": _gpt(12),
}


# --- how it is done ---


def _in_process(name: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.compiling", "--inside", name]
        environment = {**os.environ, "TORCH_TINY_CACHE": folder, "OMP_WAIT_POLICY": "passive"}
        command += ["--threads", str(threads)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _block(step: Step) -> float:
    """Seconds of a step, the mean over a while."""
    begin, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - begin < BLOCK_SECONDS:
        step()
        count += 1
    return (now - begin) / count


def _undecided(core: Any) -> int:
    regions: Iterable[dict[str, Any]] = (r for plan in core.plans(0) for r in plan["regions"])
    return sum(not region["engine"] for region in regions)


def _cpu_seconds(pid: int | None) -> float:
    """Of the worker and what it has waited for."""
    if pid is None:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
