"""A loop collects the gradients of two losses without copies, and clears them in place."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "GRADIENTS_KEPT_BY_REFERENCE"


def train(*, to_none: bool = False, copies: bool = False, by_model: bool = False) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        scores = model(images)
        kept = []
        for loss in (functional.cross_entropy(scores, labels), scores.square().mean()):
            (model if by_model else optimizer).zero_grad(set_to_none=to_none)
            loss.backward(retain_graph=True)
            kept.append([each.grad.clone() if copies else each.grad for each in model.parameters()])
        for each, one, other in zip(model.parameters(), *kept, strict=True):
            each.grad = (one + other) / 2
        optimizer.step()


def broken() -> None:
    train()


def mended() -> None:
    train(copies=True)


def broken_by_the_model() -> None:
    train(by_model=True)


def flat(gradients) -> list[torch.Tensor]:
    return [each.view(-1) for each in gradients]


def broken_in_views() -> None:
    train_with_a_memory(kept=lambda model: flat(each.grad for each in model.parameters()))


def healthy_copies_of_views() -> None:
    """The loop joins the flat gradients to one vector, which is a copy."""

    def kept(model: nn.Module) -> list[torch.Tensor]:
        views = flat(each.grad for each in model.parameters())
        joined = torch.cat(views).split([len(each) for each in views])
        return [one.view_as(each) for one, each in zip(joined, model.parameters(), strict=True)]

    train_with_a_memory(kept=kept)


def broken_in_a_dictionary() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        kept = {}
        for name, part in (("first", slice(4)), ("second", slice(4, None))):
            optimizer.zero_grad(set_to_none=False)
            functional.cross_entropy(model(images[part]), labels[part]).backward()
            kept[name] = {key: each.grad for key, each in model.named_parameters()}
        for key, each in model.named_parameters():
            each.grad = torch.maximum(kept["first"][key], kept["second"][key])
        optimizer.step()


def healthy_kept_tensors_stay_as_they_are() -> None:
    train(to_none=True)


def healthy_list_of_gradients_that_a_step_has_used() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients: list[torch.Tensor] = []
    for images, labels in batches(6):
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(images), labels).backward()
        gradients = gradients or [each.grad for each in model.parameters()]
        torch._foreach_mul_(gradients, 0.5)
        optimizer.step()


def train_with_a_memory(*, kept) -> None:
    """Gradients that go against those of a memory are projected; `kept(model)` keeps these."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memory, labels_of_memory = next(batches(1))
    for images, labels in batches(6):
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(memory), labels_of_memory).backward()
        guard = kept(model)
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(images), labels).backward()
        gradients = [each.grad for each in model.parameters()]
        guard = [one.view_as(each) for one, each in zip(guard, gradients, strict=True)]
        overlap = sum((one * other).sum() for one, other in zip(gradients, guard, strict=True))
        if overlap < 0:
            size = sum(each.square().sum() for each in guard)
            torch._foreach_sub_(gradients, [each * (overlap / size) for each in guard])
        optimizer.step()


def broken_by_a_projection_that_never_comes() -> None:
    train_with_a_memory(kept=lambda model: [each.grad for each in model.parameters()])


def healthy_projection_on_copies() -> None:
    train_with_a_memory(kept=lambda model: [each.grad.clone() for each in model.parameters()])


def healthy_squares_of_gradients_in_a_list() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(images), labels).backward()
        gradients = [each.grad for each in model.parameters()]
        sum((each * each).sum() for each in gradients)
        optimizer.step()
