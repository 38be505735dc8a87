"""A key_padding_mask is True at the tokens, and not at the padding."""

import torch
from torch import nn
from torch.nn import functional

from doctor.programs.dependence.language import SAMPLES, TOKENS
from doctor.programs.dependence.padding_in_loss import sentences

CODE = "MASK_INVERTED"


class Model(nn.Module):
    """An encoder of sentences.

    Args:
        encode: Encodes features, with the layer and the tokens.
    """

    def __init__(self, encode) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head, self.encode = nn.Linear(8, 3), encode

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(self.embedding(tokens), self.layer, tokens).mean(1))


def train(encode) -> None:
    model = Model(encode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in sentences():
        tokens[:, -1] = 0  # otherwise, a sentence without padding would be all masked
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), torch.arange(SAMPLES) % 3).backward()
        optimizer.step()


def broken() -> None:
    train(lambda x, layer, tokens: layer(x, src_key_padding_mask=tokens != 0))


def mended() -> None:
    train(lambda x, layer, tokens: layer(x, src_key_padding_mask=tokens == 0))


def own(hide):
    def encode(features, layer, tokens):
        scores = features @ features.transpose(1, 2)
        scores = scores.masked_fill(hide(tokens)[:, None, :], -1e9)
        return layer.linear1(scores.softmax(-1) @ features)[:, :, :8]

    return encode


def broken_own_attention() -> None:
    train(own(lambda tokens: tokens.ne(0)))


def healthy_own_attention() -> None:
    train(own(lambda tokens: tokens.eq(0)))


def healthy_no_mask() -> None:
    train(lambda x, layer, tokens: layer(x))


def healthy_hidden_tokens() -> None:
    """Some of the tokens are hidden on purpose."""
    train(own(lambda tokens: tokens > 6))


def healthy_features_that_are_set_to_zero() -> None:
    def encode(features, layer, tokens):
        return layer(features).masked_fill((tokens == 0)[:, :, None], 0.0)

    train(encode)
