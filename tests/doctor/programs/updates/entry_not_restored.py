"""A training is resumed, and its best loss begins again."""

import copy
import math
import tempfile
from pathlib import Path

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "ENTRY_NOT_RESTORED"


class Session:
    def __init__(self) -> None:
        self.model = classifier()
        self.mean = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.best = math.inf
        self.kept = None

    def run(self, steps: int = 4) -> None:
        for images, labels in batches(steps):
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for one, other in zip(self.mean.parameters(), self.model.parameters(), strict=True):
                    one.lerp_(other, 0.1)
            value = loss.item()
            self.best = min(self.best, value)

    def states(self):
        return {"net": self.model.state_dict(), "opt": self.optimizer.state_dict()}

    def resume(self, path, read) -> None:
        file = torch.load(path)
        self.model.load_state_dict(file["net"])
        self.optimizer.load_state_dict(file["opt"])
        read(self, path)


class Forgetting(Session):
    def save(self, path) -> None:
        torch.save({**self.states(), "best_loss": self.best}, path)


class Together(Session):
    """Its epoch and its best loss begin in one statement, and what it saves is a `file`, too."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch, self.top = 0, math.inf

    def run(self, steps: int = 4) -> None:
        super().run(steps)
        self.top = min(self.top, self.best)

    def save(self, path) -> None:
        file = {**self.states(), "top_loss": self.top}
        torch.save(file, path)


class Averaging(Session):
    def save(self, path) -> None:
        torch.save({**self.states(), "mean_of_weights": self.mean.state_dict()}, path)


class Complete(Session):
    def save(self, path) -> None:
        both = {"least_loss": self.best, "mean": self.mean.state_dict()}
        torch.save({**self.states(), **both}, path)

    def resume(self, path, read) -> None:
        file = torch.load(path)
        self.model.load_state_dict(file["net"])
        self.optimizer.load_state_dict(file["opt"])
        self.best = file["least_loss"]
        self.mean.load_state_dict(file["mean"])
        read(self, path)


class Informing(Session):
    """What it saves besides the states is for people."""

    def save(self, path) -> None:
        rate, width = 0.05, 16
        torch.save({**self.states(), "rate": rate, "width": width, "name": "net"}, path)


def nothing(session, path) -> None:
    del session, path


def resumed(kind, steps: int = 4, read=nothing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.pt")
        first = kind()
        first.run()
        first.save(path)
        second = kind()
        second.resume(path, read)
        second.run(steps)


def broken() -> None:
    resumed(Forgetting)


def mended() -> None:
    resumed(Complete)


def broken_by_an_average_that_begins_again() -> None:
    resumed(Averaging)


def broken_beside_another_start() -> None:
    resumed(Together)


def healthy_information_for_people() -> None:
    resumed(Informing)


def healthy_load_for_an_evaluation() -> None:
    resumed(Forgetting, steps=0)


def returned(kind) -> None:
    with tempfile.TemporaryDirectory() as folder:
        session = kind()
        session.run()
        session.save(Path(folder, "last.pt"))
        session.run()
        session.resume(Path(folder, "last.pt"), nothing)
        session.run()


def healthy_return_to_the_last_weights() -> None:
    """The best loss of the session is still there, and may be a later one."""
    returned(Forgetting)


def healthy_average_that_goes_on() -> None:
    returned(Averaging)


def forgets_its_best(path, steps: int = 4) -> None:
    """One function loads a file, trains and saves; it does not read the best loss."""
    model, best = classifier(), 1e9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if path.exists():
        file = torch.load(path)
        model.load_state_dict(file["net"])
        optimizer.load_state_dict(file["opt"])
    for images, labels in batches(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = min(best, loss.item())
    states = {"net": model.state_dict(), "opt": optimizer.state_dict()}
    torch.save({**states, "smallest_loss": best}, path)


def forgets_its_scale(path, steps: int = 4) -> None:
    """The inputs are divided by a running size, which begins again."""
    model, size, last = classifier(), torch.ones(6), torch.zeros(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if path.exists():
        file = torch.load(path)
        model.load_state_dict(file["net"])
        optimizer.load_state_dict(file["opt"])
    for images, labels in batches(steps):
        last = images[-1]
        size = 0.9 * size + 0.1 * images.abs().mean(0)
        loss = nn.functional.cross_entropy(model(images / size), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    states = {"net": model.state_dict(), "opt": optimizer.state_dict()}
    torch.save({**states, "running_size": size, "last_image": last}, path)


def remembers_its_scale(path, steps: int = 4) -> None:
    model, extent = classifier(), torch.ones(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if path.exists():
        file = torch.load(path)
        model.load_state_dict(file["net"])
        optimizer.load_state_dict(file["opt"])
        extent = file["extent"]
    for images, labels in batches(steps):
        extent = 0.9 * extent + 0.1 * images.abs().mean(0)
        loss = nn.functional.cross_entropy(model(images / extent), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    states = {"net": model.state_dict(), "opt": optimizer.state_dict()}
    torch.save({**states, "extent": extent}, path)


def twice(train) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "last.pt")
        train(Path(folder) / "last.pt")


def broken_in_one_function() -> None:
    twice(forgets_its_best)


def broken_by_a_running_size_that_begins_again() -> None:
    twice(forgets_its_scale)


def healthy_running_size_that_goes_on() -> None:
    twice(remembers_its_scale)
