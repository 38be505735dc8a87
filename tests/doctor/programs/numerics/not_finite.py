"""The loss of one batch overflows fp32, and the step is applied to the weights."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "NOT_FINITE"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(6)):
        optimizer.zero_grad()
        factor = 1e12 if number == 3 else 1.0
        loss = (model(images) * factor).pow(4).mean()
        if guarded and not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)


def train_on_directions(smallest: float) -> None:
    torch.manual_seed(0)
    model, head = nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    for images, labels in batches(12):
        features = model(images)
        length = features.norm(dim=1, keepdim=True).clamp(min=smallest)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features / length), labels).backward()
        optimizer.step()


def broken_by_a_zero_norm() -> None:
    train_on_directions(smallest=0.0)


def healthy_with_a_least_norm() -> None:
    train_on_directions(smallest=1e-6)


class ByHand(torch.optim.Optimizer):
    """An Adam without momentum, whose epsilon is zero in fp16."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                square = self.state[each].setdefault("square", torch.zeros_like(each))
                square.mul_(0.999).addcmul_(each.grad, each.grad, value=0.001)
                each.addcdiv_(each.grad, square.sqrt().add_(group["epsilon"]), value=-1e-3)


def train_by_hand(eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).half()
    optimizer = ByHand(model.parameters(), {"epsilon": eps})
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.half() * 1e-2).float(), labels).backward()
        optimizer.step()


def broken_by_an_update() -> None:
    train_by_hand(1e-8)


def healthy_update() -> None:
    train_by_hand(1e-3)
