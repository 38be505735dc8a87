"""Predictions are collected in one pass over a loader that shuffles, labels in another one."""

import torch
from torch.utils.data import DataLoader

from doctor.programs.data.samples import Training, data

CODE = "LABELS_OF_ANOTHER_PASS"


def train(evaluate, *, shuffles: bool = True) -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    test = DataLoader(data(16), batch_size=8, shuffle=shuffles)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)
        training.model.eval()
        with torch.no_grad():
            evaluate(training.model, test)
        training.model.train()


def in_two_passes(model, loader) -> None:
    outputs = torch.cat([model(inputs) for inputs, _ in loader])
    labels = torch.cat([labels for _, labels in loader])
    (outputs.argmax(1) == labels).float().mean().item()


def in_one_pass(model, loader) -> None:
    for inputs, labels in loader:
        (model(inputs).argmax(1) == labels).float().mean().item()


def broken() -> None:
    train(in_two_passes)


def mended() -> None:
    train(in_two_passes, shuffles=False)


def broken_with_the_labels_first() -> None:
    def evaluate(model, loader) -> None:
        labels = torch.cat([labels for _, labels in loader])
        outputs = torch.cat([model(inputs) for inputs, _ in loader])
        (outputs.argmax(1) == labels).float().mean().item()

    train(evaluate)


def healthy_one_pass() -> None:
    train(in_one_pass)


def healthy_counts_before_the_training() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    torch.cat([targets for _, targets in loader]).bincount()
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)


def healthy_two_models_in_turn() -> None:
    def evaluate(model, loader) -> None:
        in_one_pass(model, loader)
        in_one_pass(model, loader)

    train(evaluate)


def healthy_statistics_of_the_training_data_before_each_evaluation() -> None:
    training, loader = Training(), DataLoader(data(), batch_size=8, shuffle=True)
    test = DataLoader(data(16), batch_size=8)
    for _ in range(3):
        for inputs, targets in loader:
            training.step(inputs, targets)
        torch.cat([inputs for inputs, _ in loader]).mean(0)
        training.evaluate(test)


class Metric(torch.nn.Module):
    """A metric whose hash is that of its state, as in torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())

    def __hash__(self) -> int:
        return hash(id(self.total))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.total = self.total + (outputs.argmax(1) == labels).float().mean()
        return self.total


def broken_beside_many_metrics() -> None:
    def evaluate(model, loader) -> None:
        outputs = torch.cat([model(inputs) for inputs, _ in loader])
        labels = torch.cat([labels for _, labels in loader])
        for metric in [Metric() for _ in range(12)]:
            metric(outputs, labels)

    train(evaluate)
