"""Train a small network on scikit-learn's digits, on device="tiny" beside eager PyTorch on the CPU.

Both train the same network from the same seed. They take turns, an epoch each, so that whatever
else the machine does slows both down alike. At the end: when tiny's step was compiled, and a plot
of both steps' times.
"""

import statistics
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import torch_tiny

EPOCHS = 100
BATCH = 64
COLUMNS = 60


class Training:
    """One network, its optimizer and the data on one device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.network = network().to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.train_x, self.test_x, self.train_y, self.test_y = (t.to(device) for t in digits())
        self.milliseconds: list[float] = []
        """Of a step, epoch by epoch."""

    def epoch(self, order: Tensor) -> None:
        """Take a step for each batch; note the time of one."""
        batches = order.to(self.device).split(BATCH)
        start = time.perf_counter()
        for batch in batches:
            loss = F.cross_entropy(self.network(self.train_x[batch]), self.train_y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        loss.item()  # waits for the device
        self.milliseconds.append((time.perf_counter() - start) / len(batches) * 1000)

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of the test digits that are recognized."""
        self.network.eval()
        right = self.network(self.test_x).argmax(1) == self.test_y
        self.network.train()
        return right.float().mean().item()


def network() -> nn.Module:
    """Two convolutions and a layer on top."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def digits() -> list[Tensor]:
    """Images and labels: for training, for testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return train_test_split(x, torch.tensor(labels), test_size=0.25, random_state=0)


def plot(sides: list[Training]) -> str:
    """The time of a step over the epochs, a row of bars for each device, on one scale."""
    width = max(1, len(sides[0].milliseconds) // COLUMNS)
    rows = [
        [statistics.median(one.milliseconds[i : i + width]) for i in range(0, EPOCHS, width)]
        for one in sides
    ]
    top = sorted(max(row) for row in zip(*rows, strict=True))[-2]  # the first step is slow
    lines = []
    for one, row in zip(sides, rows, strict=True):
        bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(7.99 * value / top))] for value in row)
        lines.append(f"{one.device:5} {bars}")
    return "\n".join((*lines, f"{'':5} epoch 1 {'':{max(0, len(rows[0]) - 17)}}epoch {EPOCHS}"))


def main() -> None:
    tiny, cpu = Training("tiny"), Training("cpu")
    start, compiled, seen = time.perf_counter(), None, 0
    with tqdm(range(EPOCHS), desc="training on tiny and cpu", unit="epoch") as bar:
        for number in bar:
            order = torch.randperm(len(tiny.train_x))
            for training in (tiny, cpu):
                training.epoch(order)
            report = torch_tiny.report()
            if report.compiles + report.cache_hits > seen:
                seen = report.compiles + report.cache_hits
                compiled = number + 1, time.perf_counter() - start
            bar.set_postfix(accuracy=f"{tiny.accuracy():.1%}")

    print(f"\n{torch_tiny.report()}\n")
    print(f"{plot([tiny, cpu])}\n")
    early = min(5, EPOCHS)
    print(f"{'':8}{'accuracy':>10}{'ms a step, first epochs':>26}{'last':>8}")
    for one in (tiny, cpu):
        first = statistics.median(one.milliseconds[:early])
        last = statistics.median(one.milliseconds[-EPOCHS // 4 :])
        print(f"{one.device:8}{one.accuracy():>10.1%}{first:>26.2f}{last:>8.2f}")
    if compiled is not None:
        epoch, seconds = compiled
        print(f"\ncompiled in the background by epoch {epoch}, {seconds:.1f} s after the start")


if __name__ == "__main__":
    main()
