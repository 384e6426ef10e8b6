"""Networks, as one writes them."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for size, next_size in pairwise(widths):
        layers += [nn.Linear(size, next_size), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Gpt(nn.Module):
    """A decoder-only transformer over tokens; gives the logits of each next token."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.flatten(0, 1)


class Block(nn.Module):
    """Causal attention and a feed-forward network, each on a normalized input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        fed: Tensor = self.feed(self.norm_2(x))
        return x + fed

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def cnn(*channels: int, classes: int) -> nn.Sequential:
    """Convolutions with batch norm, ReLU and pooling, for images of 32x32."""
    layers: list[nn.Module] = []
    for size, next_size in pairwise(channels):
        layers += [
            nn.Conv2d(size, next_size, 3, padding=1, bias=False),
            nn.BatchNorm2d(next_size),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    side = 32 >> (len(channels) - 1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side * side, classes))


class LstmClassifier(nn.Module):
    """Reads a sequence and gives the logits of its class."""

    def __init__(self, inputs: int, width: int, *, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        logits: Tensor = self.head(outputs[:, -1])
        return logits
