"""Norms are frozen once, and the `train()` of each epoch puts them into training mode again."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "FREEZE_UNDONE"


def freeze(model: nn.Module) -> None:
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.eval()
            each.requires_grad_(requires_grad=False)


def train(mode, prepare=freeze, *, epochs: int = 2) -> None:
    """Train; `prepare(model)` runs once, and `mode(model)` before each epoch."""
    model = classifier()
    model.load_state_dict(classifier().state_dict())
    prepare(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)
    for epoch in range(epochs):
        mode(model)
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def broken() -> None:
    train(lambda model: model.train())


def mended() -> None:
    def mode(model) -> None:
        model.train()
        freeze(model)

    train(mode)


def broken_through_a_wrapper() -> None:
    train(lambda model: nn.ModuleList([model]).train())


def broken_by_a_mode_of_true() -> None:
    train(lambda model: model.train(mode=True), epochs=3)


def evaluate_norms(model: nn.Module) -> None:
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.train(mode=False)


def broken_before_any_call() -> None:
    """The weights of the norms are trained, and their statistics were to stay as they are."""
    train(lambda model: model.train(), evaluate_norms)


def healthy_norms_in_evaluation_mode_for_a_first_look() -> None:
    def prepare(model) -> None:
        evaluate_norms(model)
        with torch.no_grad():
            model(torch.zeros(4, 6))

    train(lambda model: model.train(), prepare)


def healthy_trained_norms_whose_mode_is_set_after_that_of_the_model() -> None:
    train(lambda model: evaluate_norms(model.train()))


def healthy_norms_whose_statistics_adapt() -> None:
    def prepare(model) -> None:
        model[1].requires_grad_(requires_grad=False)

    train(lambda model: model.train(), prepare)


def healthy_mode_that_stays() -> None:
    train(lambda model: None)


class Detector(nn.Module):
    """A trained backbone whose norms its own `train()` keeps in evaluation mode."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone.requires_grad_(requires_grad=False), nn.Linear(3, 3)

    def train(self, mode: bool = True):
        super().train(mode)
        for each in self.backbone:
            if isinstance(each, nn.BatchNorm1d):
                each.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))


def healthy_model_that_freezes_its_own_norms() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def steps(model) -> None:
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.05)
        for images, labels in batches(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    steps(backbone)
    detector = Detector(backbone)
    for _ in range(2):
        detector.train()
        steps(detector)


def phases(switch, *, again: bool = False) -> None:
    """Train, freeze the norms, train, call `switch(model)`, and train once more."""
    model = classifier()
    for number, prepare in enumerate((lambda model: None, freeze, switch)):
        prepare(model)
        if number == 2 and again:
            freeze(model)
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.05)
        for images, labels in batches(4, seed=number):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def broken_by_an_evaluation_in_the_second_phase() -> None:
    """The norms are frozen for some steps, until the end of an evaluation undoes it."""

    def switch(model) -> None:
        model.eval()
        with torch.no_grad():
            model(torch.zeros(4, 6))
        model.train()

    phases(switch)


def healthy_phase_in_which_norms_are_trained_again() -> None:
    phases(lambda model: model.train().requires_grad_())


def healthy_norms_that_are_frozen_again() -> None:
    phases(lambda model: model.train(), again=True)


def healthy_train_after_the_last_step() -> None:
    model = classifier()
    train(lambda its: None, prepare=lambda its: (freeze(its), setattr(model, "kept", its)))
    model.kept.train()
