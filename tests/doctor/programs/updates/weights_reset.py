"""Each epoch begins with the same pretrained weights."""

import copy

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "WEIGHTS_RESET"


def train(*, each_epoch: bool, fresh: bool = False, epochs: int = 5) -> None:
    model = classifier()
    state = copy.deepcopy(model.state_dict())
    state = {name: 0.5 * each for name, each in state.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        if each_epoch or epoch == 0:
            model.load_state_dict(state)
            if fresh:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def broken() -> None:
    train(each_epoch=True)


def mended() -> None:
    train(each_epoch=False)


def broken_by_copies_for_an_evaluation() -> None:
    model = classifier()
    average = copy.deepcopy(model)  # and nothing updates it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(5):
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for mine, its in zip(model.parameters(), average.parameters(), strict=True):
                mine.copy_(its)
            model.eval()(next(iter(batches(1)))[0])
        model.train()


class SharpnessAware(torch.optim.Optimizer):
    """Climbs before a second gradient, and returns to the weights before the climb, or the first.

    Args:
        params: The parameters.
        keeps: Whether it keeps the first weights for all steps.
    """

    def __init__(self, params, *, keeps: bool) -> None:
        super().__init__(params, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups
        self.keeps = keeps

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        params = self.param_groups[0]["params"]
        for each in params:
            if not self.keeps or "before" not in self.state[each]:
                self.state[each]["before"] = each.clone()
            each.add_(each.grad, alpha=0.05)
        closure()
        for each in params:
            each.copy_(self.state[each]["before"])
        self.base.step()
        return loss


def train_sharpness_aware(*, keeps: bool) -> None:
    model = classifier()
    optimizer = SharpnessAware(model.parameters(), keeps=keeps)
    for images, labels in batches(24):

        def closure(images=images, labels=labels):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        optimizer.step(closure)


def broken_in_an_optimizer_with_a_closure() -> None:
    train_sharpness_aware(keeps=True)


def healthy_optimizer_with_a_closure() -> None:
    train_sharpness_aware(keeps=False)


def healthy_folds_with_an_optimizer_each() -> None:
    train(each_epoch=True, fresh=True)


def healthy_return_with_the_state_of_the_optimizer() -> None:
    """As a search for a learning rate does, or adaptation to one batch after another."""
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images, labels = next(iter(batches(1)))
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for trial in range(4):
        for images, labels in batches(3, seed=trial):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])


def healthy_row_that_stays_zero() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 8)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.01)
    for images, _ in batches(6):
        optimizer.zero_grad()
        embedding(images.abs().long().clamp(max=9)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            embedding.weight[0].zero_()


def healthy_weights_of_meta_learning() -> None:
    """Each task begins with the weights that the tasks before have moved."""
    model = classifier()
    slow = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for task in range(5):
        for images, labels in batches(3, seed=task):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for mine, its in zip(slow, model.parameters(), strict=True):
                mine.add_(its - mine, alpha=0.3)
                its.copy_(mine)


def healthy_sparse_gradients() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 8, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.01)
    for images, _ in batches(6):
        optimizer.zero_grad()
        embedding(images.abs().long().clamp(max=9)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            embedding.weight.clamp_(-1.0, 1.0)
