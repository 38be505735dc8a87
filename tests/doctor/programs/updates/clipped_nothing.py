"""The optimizer goes through an iterator of parameters, and clipping gets the empty rest."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "CLIPPED_NOTHING"


def train(parameters, clipped, *, count: int = 6) -> None:
    """Train; `parameters(model)` are those of the optimizer, `clipped(model, its)` are clipped."""
    model = classifier()
    its = parameters(model)
    optimizer = torch.optim.SGD(its, lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(clipped(model, its), 0.5)
        optimizer.step()


def trainable(model: nn.Module):
    return filter(lambda each: each.requires_grad, model.parameters())


def broken() -> None:
    train(trainable, lambda model, its: its)


def mended() -> None:
    train(lambda model: [*trainable(model)], lambda model, its: its)


def broken_by_an_empty_list() -> None:
    train(trainable, lambda model, its: [*its])


def broken_by_an_iterator_that_the_first_step_uses_up() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parameters = model.parameters()
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()


def broken_by_a_clipping_before_the_backward() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        loss.backward()
        optimizer.step()


def healthy_group_without_parameters() -> None:
    """One line clips each group, and one of them is empty."""
    model = classifier()
    optimizer = torch.optim.SGD([{"params": [*model.parameters()]}, {"params": []}], lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 0.5)
        optimizer.step()


def healthy_part_without_gradients_in_some_steps() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(8)):
        optimizer.zero_grad()
        features = model[:3](images)
        features = features.detach() if number % 2 else features
        nn.functional.cross_entropy(model[3](features), labels).backward()
        nn.utils.clip_grad_norm_(model[:3].parameters(), 0.5)
        optimizer.step()


def broken_by_copies() -> None:
    train(nn.Module.parameters, lambda model, _: [each.data for each in model.parameters()])


def healthy_named_parameters() -> None:
    train(nn.Module.parameters, lambda model, _: [*dict(model.named_parameters()).values()])


def healthy_parameters_among_their_copies() -> None:
    train(
        nn.Module.parameters,
        lambda model, its: [*model.state_dict().values(), *model[3].parameters()],
    )
