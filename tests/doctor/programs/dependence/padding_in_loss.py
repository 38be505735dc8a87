"""The padding of short sentences counts in the loss of a language model."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from doctor.programs.dependence.language import LENGTH, SAMPLES, TOKENS

CODE = "PADDING_IN_LOSS"


class Model(nn.Module):
    """A recurrent language model.

    Args:
        padding: The token of the padding; None if the embedding does not know it.
    """

    def __init__(self, padding: int | None = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, 8, padding_idx=padding)
        self.layer, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, TOKENS)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        features = self.layer(self.embedding(tokens))[0]
        return self.head(features if mask is None else features * mask[:, :, None])


def sentences():
    """Yield tokens, of which each sample has fewer."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        tokens = torch.randint(1, TOKENS, (SAMPLES, LENGTH), generator=generator)
        lengths = torch.tensor([LENGTH, 6, 5, 3])
        yield tokens.masked_fill(torch.arange(LENGTH) >= lengths[:, None], 0)


def train(loss_of, model: nn.Module | None = None, *, masked: bool = False) -> None:
    model = model or Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in sentences():
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        optimizer.zero_grad()
        outputs = model(inputs, (inputs != 0).float()) if masked else model(inputs)
        loss_of(outputs.flatten(0, 1), targets.reshape(-1)).backward()
        optimizer.step()


def broken() -> None:
    train(functional.cross_entropy)


def mended() -> None:
    train(lambda outputs, targets: functional.cross_entropy(outputs, targets, ignore_index=0))


def broken_although_a_mask_marks_it() -> None:
    train(functional.cross_entropy, Model(None), masked=True)


def broken_ignores_another_target() -> None:
    train(lambda outputs, targets: functional.cross_entropy(outputs, targets, ignore_index=-1))


def healthy_average_of_tokens() -> None:
    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = functional.cross_entropy(outputs, targets, reduction="none")
        return each[targets != 0].mean()

    train(loss_of)


def healthy_weights_of_tokens() -> None:
    weight = torch.ones(TOKENS).index_fill(0, torch.tensor([0]), 0)
    train(lambda outputs, targets: functional.cross_entropy(outputs, targets, weight=weight))


def healthy_targets_that_are_left_out() -> None:
    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets.masked_fill(targets == 0, -100))

    train(loss_of)


def healthy_token_that_ends_all() -> None:
    """No part of the program says that the token is padding."""
    train(functional.cross_entropy, Model(None))


def healthy_labels_of_sentences() -> None:
    """Padded sentences with one label each."""

    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        of_sentence = outputs.view(SAMPLES, -1, TOKENS).mean(1)
        return functional.cross_entropy(of_sentence, targets[:SAMPLES])

    train(loss_of)


def by_hand(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -outputs.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def broken_entropy_by_hand() -> None:
    train(lambda outputs, targets: by_hand(outputs, targets).mean())


def broken_entropy_of_each_token() -> None:
    train(
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none").mean()
    )


def healthy_entropy_by_hand() -> None:
    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (by_hand(outputs, targets) * (targets != 0)).sum() / (targets != 0).sum()

    train(loss_of)


def train_frames(loss_of) -> None:
    """Tell a number for each frame of recordings of different lengths."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lengths = torch.tensor([9, 3, 2, 4])
    for _ in range(4):
        frames = [torch.randn(int(each), 3) for each in lengths]
        targets = [each.square().sum(1) for each in frames]
        outputs = model(pad_sequence(frames, batch_first=True))[:, :, 0]
        optimizer.zero_grad()
        loss_of(outputs, pad_sequence(targets, batch_first=True), lengths).backward()
        optimizer.step()


def broken_frames() -> None:
    train_frames(lambda outputs, targets, lengths: (outputs - targets).abs().mean(1).mean())


def healthy_frames_with_a_mask() -> None:
    def loss_of(
        outputs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        mask = torch.arange(outputs.shape[1]) < lengths[:, None]
        return ((outputs - targets).square() * mask).sum() / mask.sum()

    train_frames(loss_of)


def healthy_frames_that_are_selected() -> None:
    def loss_of(
        outputs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        mask = torch.arange(outputs.shape[1]) < lengths[:, None]
        return functional.mse_loss(outputs[mask], targets[mask])

    train_frames(loss_of)


def healthy_sum_of_padded_frames() -> None:
    """One target for each recording: zeros in its padding change nothing."""

    def loss_of(
        outputs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        mask = torch.arange(outputs.shape[1]) < lengths[:, None]
        return functional.mse_loss((outputs * mask).sum(1), targets.sum(1))

    train_frames(loss_of)


def train_rows(loss_of, *, end: int = 0) -> None:
    """Pad all sentences once, and take rows of them for each step.

    Args:
        loss_of: Returns the loss of outputs and targets.
        end: The token that fills up the sentences before they are padded with zeros.
    """
    rows = [
        row[: LENGTH - 1] if end else row[row != 0]
        for tokens in sentences()
        for row in tokens.masked_fill(tokens == 0, end)
    ]
    padded = pad_sequence(rows, batch_first=True)
    model = Model(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for first in range(4):
        tokens = padded[first : first + SAMPLES]
        optimizer.zero_grad()
        outputs = model(tokens[:, :-1])
        loss_of(outputs.flatten(0, 1), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()


def broken_rows_of_a_padded_set() -> None:
    train_rows(functional.cross_entropy)


def healthy_rows_without_the_padding() -> None:
    train_rows(lambda outputs, targets: functional.cross_entropy(outputs, targets, ignore_index=0))


def healthy_rows_that_another_token_ends() -> None:
    train_rows(functional.cross_entropy, end=TOKENS - 1)
