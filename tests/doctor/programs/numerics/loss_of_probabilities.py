"""A model ends with a softmax, and is trained with cross entropy, which has its own."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "LOSS_OF_PROBABILITIES"


def train(end: nn.Module, criterion, *, half: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), end)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(nn.Softmax(1), nn.CrossEntropyLoss())


def mended() -> None:
    train(nn.Identity(), nn.CrossEntropyLoss())


def broken_under_autocast() -> None:
    train(nn.Softmax(1), functional.cross_entropy, half=True)


def broken_without_the_logarithm() -> None:
    train(nn.Softmax(1), nn.NLLLoss())


def broken_in_bf16() -> None:
    class Rounded(nn.Module):
        def forward(self, outputs: torch.Tensor) -> torch.Tensor:
            return outputs.softmax(1).bfloat16()

    train(Rounded(), lambda outputs, labels: functional.cross_entropy(outputs, labels).float())


def healthy_logarithms() -> None:
    train(nn.LogSoftmax(1), nn.NLLLoss())


def healthy_logits_between_zero_and_one() -> None:
    train(nn.Sigmoid(), nn.CrossEntropyLoss())


def healthy_mixture_of_probabilities() -> None:
    """Takes the logarithm of the mean of two predictions, which is not a softmax."""

    def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.nll_loss(((outputs + outputs.detach()) / 2).log(), labels)

    train(nn.Softmax(1), criterion)


def healthy_targets_that_are_probabilities() -> None:
    def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = functional.one_hot(labels, 3).float() * 0.9 + 0.1 / 3
        return functional.cross_entropy(outputs, targets)

    train(nn.Identity(), criterion)
