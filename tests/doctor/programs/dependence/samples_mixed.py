"""A recurrent layer whose batch_first is False gets a batch with the samples first."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CODE = "SAMPLES_MIXED"


class Classifier(nn.Module):
    """A layer over positions, and a head on a summary of its results.

    Args:
        layer: The layer.
        summary: Makes features of shape (samples, 8) of the layer's result.
    """

    def __init__(self, layer, summary) -> None:
        super().__init__()
        self.layer, self.head, self.summary = layer, nn.Linear(8, 3), summary

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.head(self.summary(self.layer(signals)))


def train(model: nn.Module, shape=(6, 5, 8), count: int = 4, loss_of=None) -> None:
    loss_of = loss_of or functional.cross_entropy
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(count):
        signals = torch.randn(shape, generator=generator)
        labels = torch.randint(3, (6,), generator=generator)
        optimizer.zero_grad()
        loss_of(model(signals), labels).backward()
        optimizer.step()


def recurrent(kind=nn.LSTM, summary=lambda made: made[0][:, -1], **options) -> nn.Module:
    torch.manual_seed(0)
    return Classifier(kind(8, 8, **options), summary)


def attention(**options) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
    return Classifier(layer, lambda made: made.mean(1))


def broken() -> None:
    train(recurrent())


def mended() -> None:
    train(recurrent(batch_first=True))


def broken_gru_of_two_layers() -> None:
    train(recurrent(nn.GRU, num_layers=2))


def broken_attention_over_samples() -> None:
    train(attention())


def both_directions(how):
    def summary(made):
        return how(made[1])

    torch.manual_seed(0)
    return Classifier(nn.GRU(8, 4, batch_first=True, bidirectional=True), summary)


def broken_view_of_the_last_states() -> None:
    train(both_directions(lambda states: states.view(6, -1)))


def broken_view_in_place_of_a_transpose() -> None:
    class Transposing(nn.LSTM):
        def forward(self, signals: torch.Tensor):
            return super().forward(signals.view(5, 6, 8))

    torch.manual_seed(0)
    train(Classifier(Transposing(8, 8), lambda made: made[0][-1]))


def tagging(layer: nn.LSTM) -> None:
    """Tags of tokens, in batches that a loader stacks."""
    tokens = torch.randint(9, (24, 5), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(tokens, tokens % 3), batch_size=6)
    torch.manual_seed(0)
    embedding, head = nn.Embedding(9, 8), nn.Linear(8, 3)
    model = Classifier(layer, lambda made: made[0])
    model.head = head
    model = nn.Sequential(embedding, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs).view(-1, 3), targets.view(-1)).backward()
        optimizer.step()


def broken_tags_of_tokens_from_a_loader() -> None:
    tagging(nn.LSTM(8, 8))


def healthy_tags_of_tokens_from_a_loader() -> None:
    tagging(nn.LSTM(8, 8, batch_first=True))


def broken_squared_error() -> None:
    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((outputs - functional.one_hot(labels, 3).float()) ** 2).mean()

    train(recurrent(), loss_of=loss_of)


def healthy_last_states_with_samples_first() -> None:
    train(both_directions(lambda states: states.transpose(0, 1).reshape(6, -1)))


def healthy_attention_over_positions() -> None:
    train(attention(batch_first=True))


def summarised(summary) -> None:
    """The inputs have the shape (positions, samples, features); all states make one summary."""
    model = recurrent(summary=lambda made: summary(made[0]))
    model.head = nn.Linear(5 * 8, 3)
    train(model, shape=(5, 6, 8))


def broken_view_of_states_with_positions_first() -> None:
    summarised(lambda states: states.reshape(6, -1))


def healthy_states_with_positions_first() -> None:
    summarised(lambda states: states.transpose(0, 1).reshape(6, -1))


def healthy_rows_of_positions_and_samples() -> None:
    """Positions and samples are merged for a layer, and taken apart."""

    def summary(states: torch.Tensor) -> torch.Tensor:
        return states.reshape(30, 8).tanh().view(5, 6, 8).permute(1, 0, 2).flatten(1)

    summarised(summary)


def read_strips(after) -> None:
    """Train a reader of strips, whose loss takes the positions first; `after` gets them last."""
    torch.manual_seed(0)
    body, layer, head = nn.Conv1d(2, 8, 3, padding=1), nn.LSTM(8, 8), nn.Linear(8, 4)
    model = nn.ModuleList([body, layer, head])
    model.forward = lambda strips: head(layer(after(body(strips)))[0]).log_softmax(-1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CTCLoss(zero_infinity=True)
    for _ in range(4):
        labels = torch.randint(1, 4, (6, 2))
        lengths = torch.full((6,), 7), torch.full((6,), 2)
        optimizer.zero_grad()
        loss_of(model(torch.randn(6, 2, 7)), labels, *lengths).backward()
        optimizer.step()


def broken_view_of_strips() -> None:
    read_strips(lambda features: features.reshape(7, 6, 8))


def healthy_strips() -> None:
    read_strips(lambda features: features.permute(2, 0, 1))


def healthy_positions_first() -> None:
    """The first dimension is that of the positions, as the layer expects."""
    train(recurrent(summary=lambda made: made[0][-1]), shape=(5, 6, 8))


def healthy_attention_between_samples() -> None:
    """Samples attend to each other on purpose, as in BatchFormer."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.layer(features.unsqueeze(1)).squeeze(1)

    torch.manual_seed(0)
    train(Classifier(nn.Sequential(nn.Linear(8, 8), Between()), lambda made: made), shape=(6, 8))


def healthy_statistics_of_a_batch() -> None:
    """A discriminator that sees how much the samples of groups vary."""

    def with_variation(features: torch.Tensor) -> torch.Tensor:
        groups = features.view(2, 3, -1)
        spread = groups.std(0).mean(1).repeat(2)[:, None]
        return features + spread

    torch.manual_seed(0)
    train(Classifier(nn.Linear(8, 8), with_variation), shape=(6, 8))


def healthy_graph() -> None:
    """Nodes take the mean of their neighbours."""
    neighbours = torch.ones(6, 6).triu() / torch.arange(6, 0, -1)[:, None]
    torch.manual_seed(0)
    train(Classifier(nn.Linear(8, 8), lambda made: neighbours @ made), shape=(6, 8))


def healthy_contrast() -> None:
    """Each sample is compared with each other one."""

    def contrast(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        del labels
        outputs = functional.normalize(outputs)
        return functional.cross_entropy(outputs @ outputs.T / 0.1, torch.arange(6).roll(1))

    train(recurrent(batch_first=True), loss_of=contrast)


def healthy_batch_norm_without_running_statistics() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    train(Classifier(nn.Sequential(nn.Linear(8, 8), norm), lambda made: made), shape=(6, 8))


def healthy_views_that_keep_samples() -> None:
    """Heads and positions are folded into the batch, and unfolded."""

    def folded(features: torch.Tensor) -> torch.Tensor:
        rows = features.reshape(6 * 5, 8)
        heads = rows.view(6, 5, 2, 4).transpose(1, 2).reshape(12, 5, 4)
        weights = (heads @ heads.transpose(1, 2)).softmax(-1)
        return (weights @ heads).view(6, 2, 5, 4).transpose(1, 2).reshape(6, 5, 8).mean(1)

    torch.manual_seed(0)
    train(Classifier(nn.Linear(8, 8), folded))
