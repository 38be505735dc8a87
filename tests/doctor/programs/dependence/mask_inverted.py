"""A key_padding_mask is True at the tokens, and not at the padding."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from doctor.programs.dependence.language import SAMPLES, TOKENS
from doctor.programs.dependence.padding_in_loss import sentences

CODE = "MASK_INVERTED"


class Model(nn.Module):
    """An encoder of sentences.

    Args:
        encode: Encodes features, with the layer and the tokens.
    """

    def __init__(self, encode, padding: int | None = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, 8, padding_idx=padding)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head, self.encode = nn.Linear(8, 3), encode

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(self.embedding(tokens), self.layer, tokens).mean(1))


def train(encode, padding: int | None = 0) -> None:
    model = Model(encode, padding)
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


def pooled(bias_of):
    """Return a pooling over the positions, by weights whose scores get a bias."""

    def encode(features, layer, tokens):
        weights = (layer.norm1(features).sum(-1) + bias_of(tokens)).softmax(-1)
        return torch.einsum("bl,bld->bd", weights, features)[:, None]

    return encode


def broken_bias_of_a_pooling() -> None:
    """Neither the embedding nor an input says which token is padding."""
    train(pooled(lambda tokens: torch.where(tokens.ne(0), -1e4, 0.0)), None)


def broken_fused_attention() -> None:
    def encode(features, layer, tokens):
        taking_part = tokens.eq(0)[:, None, :]
        return functional.scaled_dot_product_attention(
            features, features, features, attn_mask=taking_part
        )

    train(encode, None)


def healthy_bias_of_a_pooling() -> None:
    train(pooled(lambda tokens: torch.where(tokens.ne(0), 0.0, -1e4)), None)


def healthy_pooling_over_the_last_part() -> None:
    """The parts of the sequences are numbered, and only the last one is pooled."""

    def encode(features, layer, tokens):
        parts = (torch.arange(tokens.shape[1]) > 3).long().expand(tokens.shape)
        bias = torch.where(parts.eq(0), -1e4, 0.0)
        return pooled(lambda tokens: bias)(features, layer, tokens)

    train(encode, None)


def healthy_sequences_that_end_alike() -> None:
    """Attention to all tokens, which end with one and the same in some samples."""
    train(pooled(lambda tokens: torch.where(tokens.eq(tokens[:, :1]), -1e4, 0.0)), None)


def beside_a_learned_token(hide):
    """Return an attention in which a learned token stands before the input."""

    def encode(features, layer, tokens):
        first = layer.linear2.bias.expand(len(tokens), 1, -1)
        features = torch.cat([first, features], 1)
        hidden = functional.pad(hide(tokens), (1, 0))
        scores = features @ features.transpose(1, 2)
        return (scores.masked_fill(hidden[:, None], -1e9).softmax(-1) @ features)[:, :1]

    return encode


def broken_beside_a_learned_token() -> None:
    train(beside_a_learned_token(lambda tokens: tokens.ne(0)))


def healthy_beside_a_learned_token() -> None:
    train(beside_a_learned_token(lambda tokens: tokens.eq(0)))


class Pooling(nn.Module):
    """Pools features of shape (samples, positions, 4) by an attention.

    Args:
        hide: Returns which positions are hidden, from all positions and the lengths.
    """

    def __init__(self, hide) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.hide = nn.Linear(4, 8), nn.Linear(8, 3), hide

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden = self.hide(torch.arange(features.shape[1]), lengths[:, None])
        made = self.layer(features).tanh()
        scores = made.sum(-1).masked_fill(hidden, -1e9)
        return self.head((scores.softmax(-1)[..., None] * made).sum(1))


def train_on_features(hide) -> None:
    model = Pooling(hide)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(6):
        lengths = torch.tensor([2, 5, 3, 6])
        features = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(number))
        features[torch.arange(8) >= lengths[:, None]] = 0
        optimizer.zero_grad()
        functional.cross_entropy(model(features, lengths), torch.arange(4) % 3).backward()
        optimizer.step()


def broken_by_lengths_of_features() -> None:
    train_on_features(lambda places, lengths: places < lengths)


def healthy_lengths_of_features() -> None:
    train_on_features(lambda places, lengths: places >= lengths)


def healthy_pooling_of_the_first_position() -> None:
    train_on_features(lambda places, lengths: (places > 0).expand(len(lengths), -1))


def train_on_events(hide) -> None:
    """Train on events that are filled up to ten; then evaluate many other ones."""
    torch.manual_seed(0)
    layer, head = nn.Linear(4, 8), nn.Linear(8, 1)
    parameters = [*layer.parameters(), *head.parameters()]
    model = nn.Module()
    model.layer, model.head = layer, head

    def forward(events: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        features = layer(events)
        mask = hide(padding)[:, None, :].expand(-1, 10, -1)
        read = functional.scaled_dot_product_attention(features, features, features, attn_mask=mask)
        return head(read.mean(1))[:, 0]

    model.forward = forward
    optimizer = torch.optim.SGD(parameters, lr=0.05)

    def collated():
        lengths = torch.randint(2, 8, (6,)).tolist()
        events = pad_sequence([torch.randn(each, 4) for each in lengths], batch_first=True)
        events = functional.pad(events, (0, 0, 0, 10 - events.shape[1]))
        return events, torch.arange(10) >= torch.tensor(lengths)[:, None]

    for _ in range(6):
        events, padding = collated()
        optimizer.zero_grad()
        functional.mse_loss(model(events, padding), events.sum((1, 2))).backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(10):
            model(*collated())


def broken_mask_of_events_that_are_filled_up() -> None:
    train_on_events(lambda padding: padding)


def healthy_mask_of_events_that_are_filled_up() -> None:
    train_on_events(lambda padding: ~padding)
