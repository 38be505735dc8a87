"""A model ends with a softmax, and is trained with cross entropy, which has its own."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "LOSS_OF_PROBABILITIES"


def train(end: nn.Module, criterion, *, half: bool = False, count: int = 5) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), end)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
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


def healthy_metric_without_gradients() -> None:
    def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            functional.cross_entropy(outputs.softmax(1), labels)
        return functional.cross_entropy(outputs, labels)

    train(nn.Identity(), criterion)


def healthy_logarithms() -> None:
    train(nn.LogSoftmax(1), nn.NLLLoss())


def broken_by_a_sigmoid() -> None:
    train(nn.Sigmoid(), nn.CrossEntropyLoss())


def healthy_logits_between_zero_and_one() -> None:
    train(nn.Identity(), lambda outputs, labels: functional.cross_entropy(outputs / 100, labels))


def healthy_logits_from_a_sigmoid_and_a_factor() -> None:
    train(nn.Sigmoid(), lambda outputs, labels: functional.cross_entropy(20 * outputs, labels))


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


def healthy_class_with_the_same_name() -> None:
    class CrossEntropyLoss(nn.Module):
        def forward(self, probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return functional.nll_loss(probabilities.log(), labels)

    train(nn.Softmax(1), CrossEntropyLoss())


def healthy_soft_targets_before_the_logits() -> None:
    def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = functional.one_hot(labels, 3).float()
        return nn.CrossEntropyLoss()(target=targets, input=outputs)

    train(nn.Identity(), criterion)


def healthy_logits_that_begin_as_probabilities() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = nn.Parameter(torch.zeros(()))

        def forward(self, outputs: torch.Tensor) -> torch.Tensor:
            return 1 / 3 + 10 * self.size * outputs

    train(Shifted(), nn.CrossEntropyLoss(), count=20)


def healthy_inside_vmap() -> None:
    def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        each = torch.func.vmap(functional.cross_entropy)(outputs[:, None], labels[:, None])
        return each.mean()

    train(nn.Identity(), criterion)


def binary(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    targets = functional.one_hot(labels, 3).float()
    return functional.binary_cross_entropy_with_logits(outputs.T, targets.T)


def broken_in_a_binary_loss() -> None:
    train(nn.Sigmoid(), binary)


def broken_in_a_binary_loss_of_a_softmax() -> None:
    train(nn.Softmax(1), lambda outputs, labels: binary(outputs[:, :, None][..., 0], labels))


def healthy_binary_loss() -> None:
    train(nn.Identity(), binary)


def healthy_logits_from_a_scaled_sigmoid() -> None:
    train(nn.Sigmoid(), lambda outputs, labels: binary(20 * outputs - 10, labels))


def healthy_binary_logits_between_zero_and_one() -> None:
    train(nn.Hardtanh(0.1, 0.9), binary)


class WithLoss(nn.Module):
    """A model that computes its own loss.

    Args:
        loss_of: A function of scores and labels.
    """

    def __init__(self, loss_of) -> None:
        super().__init__()
        self.body, self.loss_of = nn.Linear(6, 3), loss_of

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss_of(self.body(images), labels)


def train_with_loss(loss_of) -> None:
    model = WithLoss(loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(5):
        optimizer.zero_grad()
        model(images, labels).backward()
        optimizer.step()


def broken_inside_of_a_model() -> None:
    train_with_loss(lambda scores, labels: functional.cross_entropy(scores.softmax(-1), labels))


def broken_without_the_logarithm_inside_of_a_model() -> None:
    train_with_loss(lambda scores, labels: functional.nll_loss(scores.softmax(1), labels))


def first(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    wanted = (labels == 0).float()
    return functional.binary_cross_entropy_with_logits(scores[:, 0], wanted)


def broken_in_a_binary_loss_inside_of_a_model() -> None:
    train_with_loss(lambda scores, labels: first(scores.sigmoid(), labels))


def healthy_inside_of_a_model() -> None:
    train_with_loss(
        lambda scores, labels: (
            functional.cross_entropy(scores, labels)
            + functional.nll_loss(scores.softmax(1).log(), labels)
            + first(scores, labels)
        )
    )


def healthy_logits_from_a_sigmoid_inside_of_a_model() -> None:
    train_with_loss(
        lambda scores, labels: functional.cross_entropy(20 * scores.sigmoid() - 10, labels)
    )


def healthy_attention_before_the_scores() -> None:
    def loss_of(scores, labels):
        weights = scores.softmax(1)
        return functional.cross_entropy(weights @ torch.eye(3) * 9, labels)

    train_with_loss(loss_of)
