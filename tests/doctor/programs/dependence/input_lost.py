"""A softmax over a single output is 1 for every sample."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CODE = "INPUT_LOST"


def train(model: nn.Module, loss_of=functional.binary_cross_entropy, count: int = 10) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(count):
        images = torch.randn(8, 6, generator=generator)
        labels = (images[:, :1] > 0).float()
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()


def network(*after, width: int = 1, shift: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(6, 16)
    with torch.no_grad():
        first.bias += shift
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, width), *after)


def broken() -> None:
    train(network(nn.Softmax(dim=1)))


def mended() -> None:
    train(network(nn.Sigmoid()))


def broken_units_that_are_zero() -> None:
    train(network(shift=-100.0), functional.binary_cross_entropy_with_logits)


def broken_norm_of_one_output() -> None:
    train(network(nn.LayerNorm(1)), functional.mse_loss)


def broken_groups_of_one_output() -> None:
    train(network(nn.GroupNorm(4, 4), nn.Tanh(), nn.Linear(4, 1), width=4), functional.mse_loss)


def healthy_groups_of_two_outputs() -> None:
    train(network(nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 1), width=4), functional.mse_loss)


def healthy_groups_of_one_output_beside_the_input() -> None:
    class Beside(nn.GroupNorm):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.cat([features, super().forward(features)], 1)

    train(network(Beside(4, 4), nn.Linear(8, 1), width=4), functional.mse_loss)


class Forecast(nn.Module):
    """Reads a series, whose values are normalised first."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer = norm, nn.GRU(1, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.norm(images[..., None]))[0][:, -1])


def train_series(norm: nn.Module, loss_of=functional.mse_loss) -> None:
    generator = torch.Generator().manual_seed(1)
    model = Forecast(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        series = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        loss_of(model(series), series.mean(1, keepdim=True)).backward()
        optimizer.step()


def broken_norm_of_one_channel() -> None:
    train_series(nn.LayerNorm(1))


def broken_activation_of_the_input() -> None:
    class Clipped(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features.clamp(10.0, 20.0)

    train_series(Clipped())


def healthy_series() -> None:
    train_series(nn.Identity())


def healthy_norm_over_time() -> None:
    train_series(nn.LayerNorm([6, 1], elementwise_affine=False))


def healthy_norm_of_one_channel_beside_the_input() -> None:
    class Beside(nn.LayerNorm):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features + super().forward(features)

    train_series(Beside(1))


def healthy_head_that_begins_at_zero() -> None:
    model = network()
    nn.init.zeros_(model[2].weight)
    train(model, functional.binary_cross_entropy_with_logits)


def healthy_attention_over_one_position() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.scores, self.head = nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            weights = self.scores(images[:, None]).softmax(1)
            return self.head((weights * images[:, None]).sum(1))

    train(Attending(), functional.binary_cross_entropy_with_logits)


def healthy_some_units_that_are_zero() -> None:
    model = network()
    with torch.no_grad():
        model[0].bias[:8] -= 100.0
    train(model, functional.binary_cross_entropy_with_logits)


def healthy_one_target_for_all() -> None:
    """All samples are to be alike, as in the loss of a generator."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(outputs, torch.ones_like(labels))

    train(network(nn.Sigmoid()), loss_of)


def healthy_norm_of_features() -> None:
    train(network(nn.LayerNorm(4), nn.Linear(4, 1), width=4), functional.mse_loss)


class Reader(nn.Module):
    """Reads the class of a sequence from a token of its own, as in BERT."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.start = nn.Linear(1, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=first)
        self.head = nn.Linear(8, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        start = self.start.expand(len(images), -1, -1)
        tokens = torch.cat([start, self.token(images[..., None])], 1)
        return self.head(self.attention(tokens, tokens, tokens)[0][:, 0])


def broken_token_that_sees_other_samples() -> None:
    train(Reader(first=False), functional.binary_cross_entropy_with_logits)


def healthy_token_that_sees_its_sequence() -> None:
    train(Reader(first=True), functional.binary_cross_entropy_with_logits)


class Sentence(nn.Module):
    """Reads padded sequences; `take(outputs, lengths)` takes one position of each."""

    def __init__(self, take) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.take = nn.Embedding(9, 8), take
        self.layer, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.embed(words), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(self.take(outputs, lengths))


def train_sentences(take, *, shortest: int = 1, longest: int = 6) -> None:
    generator = torch.Generator().manual_seed(1)
    model = Sentence(take)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        lengths = torch.randint(shortest, longest + 1, (12,), generator=generator)
        words = torch.randint(1, 9, (12, longest), generator=generator)
        words = words.masked_fill(torch.arange(longest) >= lengths[:, None], 0)
        optimizer.zero_grad()
        labels = (words[:, :1] > 4).float()
        functional.binary_cross_entropy_with_logits(model(words, lengths), labels).backward()
        optimizer.step()


def broken_last_position_of_padded_sequences() -> None:
    train_sentences(lambda outputs, lengths: outputs[:, -1])


def broken_last_position_after_a_transpose() -> None:
    train_sentences(lambda outputs, lengths: functional.dropout(outputs.mT[..., -1], 0.0))


def healthy_last_position_by_length() -> None:
    train_sentences(lambda outputs, lengths: outputs[torch.arange(len(outputs)), lengths - 1])


def healthy_mean_of_padded_sequences() -> None:
    train_sentences(lambda outputs, lengths: outputs.sum(1) / lengths[:, None])


def healthy_last_position_of_sequences_of_one_length() -> None:
    train_sentences(lambda outputs, lengths: outputs[:, -1], shortest=6)


def healthy_last_position_beside_the_first() -> None:
    train_sentences(lambda outputs, lengths: outputs[:, -1] + outputs[:, 0])


def healthy_empty_histories() -> None:
    """Of most samples nothing is known, so they all get the same prediction."""
    torch.manual_seed(0)
    model, head = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    for _ in range(6):
        last = torch.randint(1, 9, (12, 1)) * (torch.arange(12) < 4)[:, None]
        outputs = head(model(last.expand(12, 3))[:, -1])
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(outputs, torch.rand(12, 1).round())
        loss.backward()
        optimizer.step()


def broken_softmax_in_many_steps() -> None:
    """No gradient reaches the layers before it, which is its effect."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)]
    train(nn.Sequential(*layers, nn.Softmax(dim=1)), functional.mse_loss, 40)
