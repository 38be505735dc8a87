"""A language model without a causal mask sees the tokens that it is to predict."""

import functools

import torch
from torch import nn
from torch.nn import functional

from doctor.programs.dependence.language import (
    LENGTH,
    TOKENS,
    Language,
    attention,
    next_token,
    texts,
    train,
)

CODE = "FUTURE_VISIBLE"


def attending(*, causal: bool) -> nn.Module:
    torch.manual_seed(0)
    return Language(lambda x, layer: attention(x, layer, causal=causal), nn.Linear(8, 24))


def encoder(mask) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Language(lambda x, layer: layer(x, src_mask=mask), layer)


def convolving(pad) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Conv1d(8, 8, 3)
    return Language(
        lambda x, layer: layer(functional.pad(x.transpose(1, 2), pad)).transpose(1, 2), layer
    )


def recurrent(kind, width: int, **options) -> nn.Module:
    torch.manual_seed(0)
    return Language(lambda x, layer: layer(x)[0], kind(8, width, batch_first=True, **options))


def broken() -> None:
    train(attending(causal=False))


def mended() -> None:
    train(attending(causal=True))


def broken_encoder_without_mask() -> None:
    train(encoder(None))


def broken_mask_that_is_inverted() -> None:
    train(encoder(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)))


def broken_recurrence_in_both_directions() -> None:
    train(recurrent(nn.LSTM, 4, bidirectional=True))


def broken_convolution_around_each_position() -> None:
    train(convolving((1, 1)))


def cropped(first: int) -> nn.Module:
    """A convolution that is padded on both sides, of whose positions some are left out."""
    torch.manual_seed(0)

    def mix(features: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        longer = layer(features.transpose(1, 2))
        return longer[..., first : first + features.shape[1]].transpose(1, 2)

    return Language(mix, nn.Conv1d(8, 8, 3, padding=2))


def broken_convolution_cropped_at_its_start() -> None:
    train(cropped(2))


def healthy_convolution_cropped_at_its_end() -> None:
    train(cropped(0))


def broken_shift_in_the_loss() -> None:
    """The model gets all tokens, and the loss compares outputs with the next ones."""

    def loss_of(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return next_token(outputs[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    train(attending(causal=False), shift=0, loss_of=loss_of)


def healthy_encoder_with_mask() -> None:
    train(encoder(nn.Transformer.generate_square_subsequent_mask(LENGTH)))


def healthy_convolution_of_earlier_positions() -> None:
    train(convolving((2, 0)))


def healthy_recurrence() -> None:
    train(recurrent(nn.GRU, 8))


def broken_large_number_for_earlier_positions() -> None:
    def mix(features: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        queries, keys, values = layer(features).chunk(3, -1)
        earlier = torch.ones(LENGTH, LENGTH).tril() == 1
        scores = (queries @ keys.transpose(1, 2)).masked_fill(earlier, -1e9)
        return features + scores.softmax(-1) @ values

    torch.manual_seed(0)
    train(Language(mix, nn.Linear(8, 24)))


def healthy_prefix_that_all_see() -> None:
    """The first tokens are seen by all positions, and only the others are predicted."""

    def mix(features: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        queries, keys, values = layer(features).chunk(3, -1)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        seen[:, :7] = True
        return features + functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen
        )

    def loss_of(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        tokens[:, :6] = -100
        return next_token(outputs, tokens)

    torch.manual_seed(0)
    train(Language(mix, nn.Linear(8, 24)), loss_of=loss_of)


def healthy_masked_tokens() -> None:
    """Hidden tokens are predicted from both sides."""
    torch.manual_seed(0)
    model = encoder(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in texts():
        hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.3
        outputs = model(tokens.masked_fill(hidden, 0))
        loss = next_token(outputs, tokens.masked_fill(~hidden, -100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Sentences(nn.Module):
    """An autoencoder of sentences: their code is meant to know all tokens.

    Args:
        twice: Whether the encoder reads tokens in both directions, and has an embedding of its own.
    """

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, 8)
        self.other = nn.Embedding(TOKENS, 8) if twice else self.embedding
        self.encoder = nn.GRU(8, 8, batch_first=True, bidirectional=twice)
        self.decoder = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        code = self.encoder(self.other(tokens))[1][-1:]
        return self.head(self.decoder(self.embedding(tokens), code.contiguous())[0])


def healthy_code_of_a_sentence() -> None:
    train(Sentences(twice=False))


def healthy_code_from_both_directions() -> None:
    train(Sentences(twice=True))


class Pooled(nn.Module):
    """An autoencoder whose encoder is an attention over all tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.layer = nn.Linear(8, 24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        features = self.embedding(tokens)
        code = attention(features, self.layer, causal=False).mean(1, keepdim=True)
        return self.head(attention(features + code, self.layer, causal=True))


def healthy_pooled_code() -> None:
    train(Pooled())


class Translation(nn.Module):
    """An encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, tokens: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        inner = self.inner(self.embedding(tokens), self.embedding(before), tgt_mask=mask)
        return self.head(inner)


def healthy_copying_translation() -> None:
    """The encoder gets the tokens that the decoder is to predict."""
    model = Translation()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in texts():
        outputs = model(tokens, tokens[:, :-1])
        optimizer.zero_grad()
        next_token(outputs, tokens[:, 1:].contiguous()).backward()
        optimizer.step()


class WithLoss(Language):
    """Computes its loss itself, from slices of a batch."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(super().forward(tokens).flatten(0, 1), targets.flatten())


def train_with_loss(*, causal: bool) -> None:
    torch.manual_seed(0)
    mix = functools.partial(attention, causal=causal)
    model = WithLoss(mix, nn.Linear(8, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in texts():
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()


def broken_in_a_model_that_is_given_its_targets() -> None:
    train_with_loss(causal=False)


def healthy_model_that_is_given_its_targets() -> None:
    train_with_loss(causal=True)
