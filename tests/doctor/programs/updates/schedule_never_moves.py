"""A loop makes a scheduler, and never calls it."""

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

from doctor.loops import batches, classifier

CODE = "SCHEDULE_NEVER_MOVES"


def train(make, *, moves=lambda number: False, count: int = 40) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer)
    for number, (images, labels) in enumerate(batches(count)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if moves(number):
            scheduler.step()


def broken() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, 40))


def mended() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, 40), moves=lambda number: True)


def broken_with_a_warm_up_that_never_ends() -> None:
    train(lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)))


def broken_with_one_cycle() -> None:
    train(lambda optimizer: OneCycleLR(optimizer, 0.05, total_steps=40))


def broken_by_another_optimizer() -> None:
    """The scheduler moves the rate of an optimizer that makes no steps."""
    model = classifier()
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = CosineAnnealingLR(first, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def two_optimizers(*, moves: bool, again: bool, kind=torch.optim.SGD, epochs: int = 8) -> None:
    """Train; after two epochs, another optimizer takes over, with a scheduler of its own or not."""
    model = classifier()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.05)
    scheduler = CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if epoch == 2:
            optimizer = kind(model.parameters(), lr=0.05)
            scheduler = CosineAnnealingLR(optimizer, epochs - 2) if again else scheduler
        for images, labels in batches(6, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if moves or epoch < 2:
            scheduler.step()


def broken_after_another_optimizer_takes_over() -> None:
    two_optimizers(moves=True, again=False)


class Warmup:
    """A scheduler that is none of torch's, as those of timm: it moves in epochs alone."""

    def __init__(self, optimizer, start: float, epochs: int) -> None:
        self.optimizer, self.start, self.epochs = optimizer, start, epochs
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        self.step(0)

    def step(self, epoch: int) -> None:
        for group in self.optimizer.param_groups:
            share = min(1.0, epoch / self.epochs)
            group["lr"] = self.start + share * (group["initial_lr"] - self.start)

    def step_update(self, number: int) -> None:
        """Do nothing, as the plan is in epochs."""


def another_package(*, in_epochs: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = Warmup(optimizer, 1e-4, 2)
    for epoch in range(4):
        for number, (images, labels) in enumerate(batches(8, seed=epoch)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            scheduler.step_update(8 * epoch + number)
        if in_epochs:
            scheduler.step(epoch + 1)


def broken_by_another_package() -> None:
    another_package(in_epochs=False)


def healthy_scheduler_of_another_package() -> None:
    another_package(in_epochs=True)


def train_on_a_loader(make, *, moves: bool) -> None:
    images, labels = map(torch.cat, zip(*batches(5), strict=True))
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer)
    for _ in range(8):
        for inputs, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
        if moves:
            scheduler.step()


def broken_with_a_length_in_epochs() -> None:
    train_on_a_loader(lambda optimizer: CosineAnnealingLR(optimizer, 8), moves=False)


def healthy_length_in_epochs() -> None:
    train_on_a_loader(lambda optimizer: CosineAnnealingLR(optimizer, 8), moves=True)


def healthy_start_of_a_longer_plan() -> None:
    """A scheduler for a part of the run that does not come."""
    train_on_a_loader(lambda optimizer: LinearLR(optimizer, 1.0, 0.1, total_iters=50), moves=False)


def healthy_phases() -> None:
    two_optimizers(moves=True, again=True)


def healthy_scheduler_that_rests_in_the_second_phase() -> None:
    two_optimizers(moves=False, again=False)


def healthy_end_by_another_method() -> None:
    """The scheduler of the first method is still called, and the second one has no plan."""
    two_optimizers(moves=True, again=False, kind=torch.optim.Adam)


def healthy_epochs() -> None:
    train(lambda optimizer: StepLR(optimizer, 2), moves=lambda number: number % 10 == 9)


def healthy_first_epoch_of_a_longer_run() -> None:
    """The program ends before the first epoch does, such as a test of the loop."""
    train(lambda optimizer: StepLR(optimizer, 30), count=4)


def healthy_plateau_that_waits_for_an_evaluation() -> None:
    train(ReduceLROnPlateau)


def healthy_rate_that_the_loop_sets_itself() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / 40)
    for number, (images, labels) in enumerate(batches(40)):
        optimizer.param_groups[0]["lr"] = 0.05 * scheduler.lr_lambdas[0](number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_constant() -> None:
    train(lambda optimizer: ConstantLR(optimizer, 1.0, total_iters=1))


def advance(plan, number: int) -> None:
    if number % 100 == 99:
        plan.step()


def unused(*, passed_on: bool, shown: bool = False) -> None:
    """Train with a scheduler for another length than that of the program."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    annealing = StepLR(optimizer, 7)
    every_hundredth = StepLR(optimizer, 7) if passed_on else None
    for number, (images, labels) in enumerate(batches(24)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if passed_on:
            advance(every_hundredth, number)
    assert not shown or annealing.get_last_lr()


def broken_without_any_move() -> None:
    unused(passed_on=False, shown=True)


class CoolingLoop:
    """Trains, with a method that runs after each step."""

    def __init__(self) -> None:
        self.model = classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.cooling = StepLR(self.optimizer, 7)

    def run(self) -> None:
        for images, labels in batches(24):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            self.after_step()

    def after_step(self) -> None:
        self.cooling.step()


class CountingLoop(CoolingLoop):
    count = 0

    def after_step(self) -> None:
        self.count += 1


def broken_by_a_method_that_overrides_the_one_that_moves_it() -> None:
    CountingLoop().run()


class RestingLoop:
    def __init__(self) -> None:
        self.model = classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.resting = StepLR(self.optimizer, 7)

    def run(self) -> None:
        for number, (images, labels) in enumerate(batches(24)):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            self.after_step(number)

    def after_step(self, number: int) -> None:
        if number % 100 == 99:
            self.resting.step()


class CarefulLoop(RestingLoop):
    def after_step(self, number: int) -> None:
        super().after_step(number)


def healthy_method_that_calls_the_one_that_moves_it() -> None:
    CarefulLoop().run()
