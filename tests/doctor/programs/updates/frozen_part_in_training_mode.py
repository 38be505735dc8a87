"""A frozen teacher is a part of the model, whose `train()` puts the teacher into training mode."""

import copy

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "FROZEN_PART_IN_TRAINING_MODE"


def network(share: float = 0.5, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(share), nn.Linear(16, 3))


class Distiller(nn.Module):
    """A student that learns the outputs of a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = network().eval().requires_grad_(requires_grad=False)
        self.student = network(0.0, seed=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            targets = self.teacher(images)
        return functional.mse_loss(self.student(images), targets)


class Careful(Distiller):
    """One that keeps the mode of the teacher."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.teacher.eval()
        return self


def distil(model: nn.Module, *, epochs: int = 2) -> None:
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05)
    for epoch in range(epochs):
        model.train()
        for images, _ in batches(4, seed=epoch):
            optimizer.zero_grad()
            model(images).backward()
            optimizer.step()


def broken() -> None:
    distil(Distiller())


def mended() -> None:
    distil(Careful())


def tune(prepare, *, epochs: int = 3, frozen_from: int = 0) -> None:
    """Train a new head on a frozen backbone; `prepare(backbone)` runs in each epoch."""
    backbone = classifier()[:3]
    model = nn.Sequential(backbone, nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        backbone.requires_grad_(requires_grad=epoch < frozen_from)
        model.train()
        prepare(backbone)
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def broken_by_norms_of_a_frozen_backbone() -> None:
    tune(lambda backbone: None)


def broken_by_norms_of_a_backbone_that_is_frozen_late() -> None:
    tune(lambda backbone: None, epochs=15, frozen_from=10)


def healthy_backbone_that_is_frozen_late() -> None:
    tune(
        lambda backbone: backbone.train(backbone[0].weight.requires_grad), epochs=15, frozen_from=10
    )


def healthy_backbone_in_evaluation_mode() -> None:
    tune(lambda backbone: backbone.eval())


def healthy_dropout_in_a_frozen_block() -> None:
    """A fine-tuning of the head alone, whose frozen layers drop values as in pretraining."""
    model = nn.Sequential(network(), nn.Linear(3, 3))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.05)
    for images, labels in batches(8):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def invert(prepare, *, moves: bool = False) -> None:
    """Train inputs of a model that was trained before; `prepare(model)` freezes it."""
    model = network(0.3)
    named = nn.Sequential(model, nn.Linear(3, 3))
    optimizer = torch.optim.SGD(named.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(named(images), labels).backward()
        optimizer.step()
    prepare(model)
    maker = nn.Linear(3, 6)
    makers = torch.optim.SGD(maker.parameters(), lr=0.05)
    for images, labels in batches(8):
        wanted = functional.one_hot(labels, 3).float()
        makers.zero_grad()
        functional.cross_entropy(model(maker(wanted)), labels).backward()
        makers.step()
        if moves:  # as a critic
            model.requires_grad_()
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            model.requires_grad_(requires_grad=False)


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(requires_grad=False)


def broken_by_a_loss_through_a_frozen_model() -> None:
    invert(frozen)


def healthy_loss_through_a_frozen_model_in_evaluation_mode() -> None:
    invert(lambda model: frozen(model).eval())


def healthy_critic_that_is_frozen_while_another_model_learns() -> None:
    invert(frozen, moves=True)


class Pair(nn.Module):
    """A student and a teacher that follows it, both in training mode."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            targets = self.teacher(images + 0.1)
        return functional.mse_loss(self.student(images), targets)


def train_pair(pair: Pair, follow) -> None:
    optimizer = torch.optim.SGD(pair.student.parameters(), lr=0.05)
    for images, labels in batches(8):
        pair.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(pair.student(images), labels)
        (loss + pair(images)).backward()
        optimizer.step()
        with torch.no_grad():
            students = pair.student.parameters()
            for mine, its in zip(pair.teacher.parameters(), students, strict=True):
                follow(mine, its)


def healthy_teacher_that_follows_its_student() -> None:
    """A mean teacher keeps dropout and norms in training mode."""
    train_pair(Pair(classifier()), lambda mine, its: mine.lerp_(its, 0.1))


def healthy_teacher_whose_data_are_assigned() -> None:
    """An assignment of `.data` does not count as a change in place."""

    def follow(mine: torch.Tensor, its: torch.Tensor) -> None:
        mine.data = 0.9 * mine.data + 0.1 * its.data

    torch.manual_seed(0)
    train_pair(Pair(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))), follow)
