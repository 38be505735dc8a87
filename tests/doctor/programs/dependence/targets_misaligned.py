"""The targets of a language model are its inputs, without a shift."""

import torch
from torch import nn

from doctor.programs.dependence.language import Language, attention, next_token, train

CODE = "TARGETS_MISALIGNED"


def model(*, causal: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return Language(lambda x, layer: attention(x, layer, causal=causal), nn.Linear(8, 24))


def shifted(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return next_token(outputs[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def broken() -> None:
    train(model(), shift=0)


def mended() -> None:
    train(model())


def broken_shift_in_the_data_and_in_the_loss() -> None:
    train(model(), loss_of=shifted)


def broken_recurrence_that_copies() -> None:
    torch.manual_seed(0)
    train(Language(lambda x, layer: layer(x)[0], nn.GRU(8, 8, batch_first=True)), shift=0)


class Shifting(nn.Module):
    """A decoder that begins its input with a token of its own, and leaves out the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        start = torch.zeros_like(tokens[:, :1])
        return self.inner(torch.cat([start, tokens[:, :-1]], 1))


def broken_shift_in_the_model_and_in_the_data() -> None:
    train(Shifting())


def healthy_shift_in_the_model() -> None:
    train(Shifting(), shift=0)


def healthy_shift_in_the_loss() -> None:
    train(model(), shift=0, loss_of=shifted)


def healthy_autoencoder() -> None:
    """A model that sees all positions reconstructs its input."""
    train(model(causal=False), shift=0)


def healthy_two_next_tokens() -> None:
    """A second loss is that of the token after the next one."""

    def both(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return next_token(outputs, tokens) + shifted(outputs, tokens)

    train(model(), loss_of=both)


def healthy_other_labels() -> None:
    """Each token is tagged, as in named entity recognition."""

    def tags(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return next_token(outputs, tokens * 5 % 7)

    train(model(causal=False), shift=0, loss_of=tags)
