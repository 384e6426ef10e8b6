"""Text from a transformer, one token at a time, with what was computed kept in a cache."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models import Block, Gpt
from bench.sides import Side, Step

TOKENS = 64
"""Written in a step; the cache is of that size."""


def decode(side: Side) -> Step:
    """A step writes a text from its first token on and reads each token as it comes."""
    layers, width, heads, tokens = 4, 256, 4, 256
    network = Gpt(layers=layers, width=width, heads=heads, context=TOKENS, tokens=tokens)
    decoder = Decoder(network, heads).to(side.device).eval()
    logits_of = side.compiled(decoder.forward)
    first = torch.zeros(1, 1, dtype=torch.long).to(side.device)
    # Not views of one tensor: a place in memory is no data, and each would be another trace.
    positions = [torch.tensor([index]).to(side.device) for index in range(TOKENS)]

    @torch.no_grad()
    def step() -> Tensor:
        token = first
        for position in positions:
            logits = logits_of(token, position)
            token = logits.argmax(1, keepdim=True)
            token.item()
        return logits

    return step


class Decoder(nn.Module):
    """Gives the logits that follow one token. Its position is data, so all positions are alike."""

    def __init__(self, network: Gpt, heads: int) -> None:
        super().__init__()
        self.network = network
        size, width = network.positions.shape
        shape = (2 * len(network.blocks), 1, heads, size, width // heads)
        self.cache = nn.Buffer(torch.zeros(shape))
        self.mask = nn.Buffer(torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        network = self.network
        x = network.tokens(token) + network.positions[position]
        mask = self.mask[position]
        for index, block in enumerate(network.blocks):
            assert isinstance(block, Block)
            x = x + self._attention(block, block.norm_1(x), index, position, mask)
            x = x + block.feed(block.norm_2(x))
        logits: Tensor = network.head(network.norm(x))
        return logits[:, -1]

    def _attention(
        self, block: Block, x: Tensor, index: int, position: Tensor, mask: Tensor
    ) -> Tensor:
        q, k, v = (
            part.unflatten(2, (block.heads, -1)).transpose(1, 2)
            for part in block.qkv(x).chunk(3, dim=2)
        )
        keys, values = self.cache[2 * index], self.cache[2 * index + 1]
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out: Tensor = block.out(mixed.transpose(1, 2).flatten(2))
        return out
