"""Train a small network on scikit-learn's digits, on device="tiny" beside eager PyTorch on the CPU.

Both train the same network from the same seed. They take turns, an epoch each, so that whatever
else the machine does slows both down alike.
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

EPOCHS = 20
BATCH = 64


class Training:
    """One network, its optimizer and the data on one device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.network = network().to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.train_x, self.test_x, self.train_y, self.test_y = (t.to(device) for t in digits())
        self.seconds: list[float] = []

    def epoch(self, order: Tensor) -> None:
        """Take a step for each batch; note the seconds per step."""
        batches = order.to(self.device).split(BATCH)
        start = time.perf_counter()
        for batch in batches:
            loss = F.cross_entropy(self.network(self.train_x[batch]), self.train_y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        loss.item()  # waits for the device
        self.seconds.append((time.perf_counter() - start) / len(batches))

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


def main() -> None:
    tiny, cpu = Training("tiny"), Training("cpu")
    with tqdm(range(EPOCHS), desc="training on tiny and cpu", unit="epoch") as bar:
        for _ in bar:
            order = torch.randperm(len(tiny.train_x))
            for training in (tiny, cpu):
                training.epoch(order)
            bar.set_postfix(accuracy=f"{tiny.accuracy():.1%}")

    print(f"\n{'':8}{'accuracy':>10}{'ms per step':>14}")
    for training in (tiny, cpu):
        step = statistics.median(training.seconds)
        print(f"{training.device:8}{training.accuracy():>10.1%}{step * 1000:>14.2f}")
    print(f"\n{torch_tiny.report()}")


if __name__ == "__main__":
    main()
