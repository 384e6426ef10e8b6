"""Networks train as on the oracle: the losses of a few steps, and every parameter after them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from harness import agree, numbers
from torch import Tensor, nn
from torch.nn import functional as F

Net = tuple[nn.Module, tuple[int, ...]]


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = cell(4, 5, batch_first=True, **options)
        self.out = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        return self.out(self.layer(x, src_mask=mask, is_causal=True).mean(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6, padding_idx=0)
        self.bag = nn.EmbeddingBag(10, 6, mode="mean")
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        words = (x * 3).abs().long().clamp(max=9)
        return self.out(torch.cat([self.words(words).mean(1), self.bag(words)], -1))


NETS: dict[str, Callable[[], Net]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (6, 4)),
    "mlp_norms": lambda: (
        nn.Sequential(
            nn.Linear(4, 8),
            nn.LayerNorm(8),
            nn.GELU(),
            nn.Linear(8, 8),
            nn.RMSNorm(8),
            nn.SiLU(),
            nn.Linear(8, 3),
        ),
        (6, 4),
    ),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, stride=2, groups=2),
            nn.GroupNorm(2, 4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (5, 2, 8, 8),
    ),
    "cnn_channels_last": lambda: (
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(), nn.Flatten(), nn.Linear(64, 3)
        ).to(memory_format=torch.channels_last),
        (5, 2, 6, 6),
    ),
    "deconv": lambda: (
        nn.Sequential(
            nn.ConvTranspose2d(2, 3, 2, stride=2),
            nn.InstanceNorm2d(3, affine=True),
            nn.ELU(),
            nn.AvgPool2d(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Flatten(),
            nn.Linear(48, 3),
        ),
        (5, 2, 2, 2),
    ),
    "conv1d_3d": lambda: (
        nn.Sequential(
            nn.Conv1d(2, 4, 3, dilation=2, padding=2, padding_mode="circular"),
            nn.PReLU(),
            nn.Unflatten(1, (1, 2, 2)),
            nn.Conv3d(1, 2, (1, 2, 3)),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (5, 2, 8),
    ),
    "lstm": lambda: (Recurrent(nn.LSTM, num_layers=2), (3, 6, 4)),
    "gru": lambda: (Recurrent(nn.GRU, bidirectional=True), (3, 6, 4)),
    "rnn": lambda: (Recurrent(nn.RNN, nonlinearity="relu"), (3, 6, 4)),
    "transformer": lambda: (Attention(), (3, 5, 8)),
    "embedding": lambda: (Words(), (4, 5)),
    "dropout": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3), nn.AlphaDropout(0.1)),
        (6, 4),
    ),
    "weight_norm": lambda: (
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            nn.Tanh(),
            nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        ),
        (6, 4),
    ),
}


# Batch norms and recurrent layers take PyTorch's own kernels on tiny, also where cuDNN has some.
WITHOUT_CUDNN = ("cnn", "cnn_channels_last", "deconv", "lstm", "gru", "rnn")


@pytest.mark.parametrize("name", NETS)
def test_training(name: str, device: str) -> None:
    def program(where: str) -> list[object]:
        torch.manual_seed(0)
        net, shape = NETS[name]()
        net(numbers(*shape))  # lazy layers take their sizes
        net.to(where)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        target = torch.arange(shape[0], device=where) % 3
        losses = []
        torch.manual_seed(1)
        for i in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(numbers(*shape, seed=i).to(where)), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        net.eval()
        with torch.no_grad():
            final = net(numbers(*shape).to(where))
        return [losses, final, dict(net.state_dict())]

    with torch.backends.cudnn.flags(enabled=name not in WITHOUT_CUDNN):
        agree(program, device)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.argmax(1), label_smoothing=0.1),
    "soft_cross_entropy": lambda x, y: F.cross_entropy(x, y.softmax(1)),
    "nll_weighted": lambda x, y: F.nll_loss(x.log_softmax(1), y.argmax(1), weight=y[0].exp()),
    "ignore_index": lambda x, y: F.cross_entropy(x, y.argmax(1), ignore_index=0),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign()),
    "margin": lambda x, y: F.margin_ranking_loss(x, y, y.sign()),
    "multi_margin": lambda x, y: F.multi_margin_loss(x, y.argmax(1)),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, y.roll(1, 0)),
    "cosine": lambda x, y: F.cosine_embedding_loss(x, y, y[:, 0].sign()),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y.abs()),
    "gaussian": lambda x, y: F.gaussian_nll_loss(x, y, y.exp()),
    "ctc": lambda x, _: F.ctc_loss(
        x.log_softmax(1)[:, None],
        torch.ones(1, 2, dtype=torch.int64, device=x.device),
        torch.tensor([6]),
        torch.tensor([2]),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(6, 4).to(where).requires_grad_()
        loss = LOSSES[name](x, numbers(6, 4, seed=1).to(where))
        loss.backward()
        return [loss, x.grad]

    agree(program, device)


LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention_mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(4, 4, device=x.device).tril() > 0
    ),
    "grid_sample": lambda x: F.grid_sample(x, x[..., :2].tanh(), align_corners=False),
    "interpolate": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "unfold_fold": lambda x: F.fold(F.unfold(x, 2), (4, 6), 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 6, 6), 2),
    "lp_pool": lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 2),
    "max_unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 2),
    "local_response": lambda x: F.local_response_norm(x, 2),
    "normalize": lambda x: F.normalize(x, dim=1),
    "glu": lambda x: F.glu(x, -1),
    "pad_reflect": lambda x: F.pad(x, (1, 2, 1, 0), "reflect"),
    "conv_bias_stride": lambda x: F.conv2d(
        x, x[:, :, :2, :2].transpose(0, 1)[:, :1].repeat(1, x.size(1), 1, 1), stride=2, padding=1
    ),
    "batch_norm_eval": lambda x: F.batch_norm(
        x, x.mean((0, 2, 3)).detach(), x.var((0, 2, 3)).detach()
    ),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, x.size(-1), x.size(-1), device=x.device)),
    "multi_head": lambda x: F.multi_head_attention_forward(
        x[0],
        x[0],
        x[0],
        6,
        2,
        torch.eye(6, device=x.device).repeat(3, 1),
        None,
        None,
        None,
        False,
        0.0,
        torch.eye(6, device=x.device),
        None,
    )[0],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = numbers(2, 3, 4, 6).to(where)[:, :, :, :].requires_grad_()
        y = LAYERS[name](x)
        y.square().sum().backward()
        return [y, x.grad]

    agree(program, device)


@pytest.mark.parametrize("width", [8, 20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["causal", "mask", "one_query"])
def test_query_heads_that_share_a_key(
    how: str, dtype: torch.dtype, width: int, device: str
) -> None:
    """Grouped-query attention: causal where a cache is filled, then token by token."""

    def program(where: str) -> list[Tensor]:
        shapes = ((2, 8, 1 if how == "one_query" else 16, width), *2 * [(2, 2, 16, width)])
        q, k, v = (
            numbers(*shape, dtype=dtype, seed=i).to(where).requires_grad_()
            for i, shape in enumerate(shapes)
        )
        mask = torch.ones(16, 16, device=where).tril() > 0 if how == "mask" else None
        out = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=how == "causal", enable_gqa=True
        )
        out.float().square().sum().backward()
        return [out, q.grad, k.grad, v.grad]

    agree(program, device, strides=False)


def test_packed_sequences(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        torch.manual_seed(0)
        lstm = nn.LSTM(3, 4).to(where)
        x = numbers(5, 2, 3).to(where)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
        out, (h, c) = lstm(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
        padded.sum().backward()
        return [padded, h, c, lengths, lstm.weight_hh_l0.grad]

    with torch.backends.cudnn.flags(enabled=False):
        agree(program, device)


def test_batch_norm_statistics(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        norm = nn.BatchNorm1d(3, momentum=None).to(where)
        for i in range(3):
            norm(numbers(4, 3, seed=i).to(where))
        return [norm.running_mean, norm.running_var, norm.num_batches_tracked]

    agree(program, device)


def test_moving_a_module(device: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = net[0].weight
    assert net.to(device) is net
    assert net[0].weight is weight
    assert {t.device.type for t in net.state_dict().values()} == {device}
    assert net.double()[0].weight.dtype == torch.float64
    assert {t.device.type for t in net.cpu().state_dict().values()} == {"cpu"}


def test_default_device(device: str) -> None:
    with torch.device(device):
        net = nn.Linear(2, 3)
        x = torch.ones(4, 2)
    assert net(x).device.type == device
    assert net.weight.device.type == device


def test_an_encoder_with_a_padding_mask(device: str) -> None:
    """Which PyTorch's fast path takes as nested tensors, that only its own devices have."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padded = numbers(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    padded[0, 3:] = padded[2, 1:] = True
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = encoder(x, src_key_padding_mask=padded)
        encoder.to(device)
        for _ in range(3):
            ours = encoder(x.to(device), src_key_padding_mask=padded.to(device))
            torch.testing.assert_close(ours.cpu()[~padded], expected[~padded])
