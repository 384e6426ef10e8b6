"""Networks as people train them: each makes a training step on a device, from the same weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[], object]
Network = Callable[[str], Step]


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


def _training(
    net: nn.Module,
    device: str,
    loss_of: Callable[[nn.Module, list[Tensor]], Tensor],
    batch: list[Tensor],
    clip: bool = True,
    adamw: bool = True,
) -> Step:
    net = net.to(device)
    given = [one.to(device) for one in batch]
    optimizer = (torch.optim.AdamW if adamw else torch.optim.Adam)(net.parameters(), lr=1e-3)

    def step() -> None:
        loss = loss_of(net, given)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def _classified(net: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(net(batch[0]).flatten(0, -2), batch[1].flatten())


def _cnn(device: str) -> Step:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
    )
    batch = [torch.randn(64, 1, 8, 8), torch.randint(10, (64,))]
    return _training(net, device, _classified, batch, clip=False, adamw=False)


def _transformer(layers: int) -> Network:
    def make(device: str) -> Step:
        torch.manual_seed(0)
        words = torch.randint(1000, (4, 64))
        return _training(Transformer(layers), device, _classified, [words, words.roll(-1, 1)])

    return make


def _different(layers: int) -> Network:
    """Layers of which no two have the same width."""

    def widths() -> Iterator[nn.Module]:
        for i in range(layers):
            yield nn.Linear(64 + 8 * i, 72 + 8 * i)
            yield nn.LayerNorm(72 + 8 * i)
            yield nn.GELU()

    def make(device: str) -> Step:
        torch.manual_seed(0)
        batch = [torch.randn(64, 64), torch.randint(64 + 8 * layers, (64,))]
        return _training(nn.Sequential(*widths()), device, _classified, batch)

    return make


def _adamw(count: int) -> Network:
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


# --- of the library that people take them from, with random weights ---


def _labelled(net: nn.Module, batch: list[Tensor]) -> Tensor:
    loss: Tensor = net(batch[0], labels=batch[-1]).loss
    return loss


def _resnet(device: str) -> Step:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128], depths=[2, 2, 2], layer_type="basic",
        num_labels=10,
    )  # fmt: skip
    batch = [torch.randn(8, 3, 64, 64), torch.randint(10, (8,))]
    return _training(ResNetForImageClassification(config), device, _labelled, batch)


def _gpt2(device: str) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=2000, n_positions=128, n_embd=256, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    words = torch.randint(2000, (4, 64))
    return _training(GPT2LMHeadModel(config), device, _labelled, [words, words])


def _bert(device: str) -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024, max_position_embeddings=128, num_labels=4,
    )  # fmt: skip
    batch = [torch.randint(2000, (8, 64)), torch.randint(4, (8,))]
    return _training(BertForSequenceClassification(config), device, _labelled, batch)


def _vit(device: str) -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        image_size=64, patch_size=8, num_labels=10,
    )  # fmt: skip
    batch = [torch.randn(8, 3, 64, 64), torch.randint(10, (8,))]
    return _training(ViTForImageClassification(config), device, _labelled, batch)


NETWORKS: dict[str, Network] = {
    "cnn": _cnn,
    "adamw_10": _adamw(10),
    "adamw_100": _adamw(100),
    "adamw_1000": _adamw(1000),
    "gpt_4": _transformer(4),
    "gpt_12": _transformer(12),
    "different_6": _different(6),
    "different_12": _different(12),
}
REAL: dict[str, Network] = {"resnet": _resnet, "gpt2": _gpt2, "bert": _bert, "vit": _vit}


def available() -> dict[str, Network]:
    """All of them; those of transformers where it is installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        return dict(NETWORKS)
    return {**NETWORKS, **REAL}
