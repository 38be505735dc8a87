"""An average of the weights is loaded for each evaluation, and the weights are not put back."""

import copy

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "WEIGHTS_LEFT_AFTER_EVALUATION"


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for images, _ in batches(2, seed=1):
            model(images)
    model.train()


def train(start, *, epochs: int = 3, update=None) -> None:
    """Train; `start(model)` returns `update()`, for after each step, and `evaluate()`."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    update, assess = start(model)
    for epoch in range(epochs):
        for images, labels in batches(6, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            update()
        assess()


def averaged(model: nn.Module, *, keeps: str):
    average = copy.deepcopy(model)

    def update() -> None:
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(its, alpha=0.1)

    def assess() -> None:
        kept = model.state_dict()
        if keeps == "copies":
            kept = copy.deepcopy(kept)
        model.load_state_dict(average.state_dict())
        evaluate(model)
        if keeps:
            model.load_state_dict(kept)

    return update, assess


def broken() -> None:
    train(lambda model: averaged(model, keeps=""))


def mended() -> None:
    train(lambda model: averaged(model, keeps="copies"))


def broken_with_references_in_place_of_copies() -> None:
    train(lambda model: averaged(model, keeps="references"))


def shadowed(model: nn.Module, *, restores: bool):
    shadow = {name: each.data.clone() for name, each in model.named_parameters()}

    def update() -> None:
        for name, each in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * each.data

    def assess() -> None:
        backup = {name: each.data for name, each in model.named_parameters()}
        for name, each in model.named_parameters():
            each.data = shadow[name].clone()
        evaluate(model)
        if restores:
            for name, each in model.named_parameters():
                each.data = backup[name]

    return update, assess


def broken_by_assignment() -> None:
    train(lambda model: shadowed(model, restores=False))


def healthy_by_assignment() -> None:
    train(lambda model: shadowed(model, restores=True))


def rounded(model: nn.Module, *, restores: bool):
    def assess() -> None:
        kept = [each.detach().clone() for each in model.parameters()]
        with torch.no_grad():
            for each in model.parameters():
                each.copy_((each * 16).round() / 16)
        evaluate(model)
        if restores:
            with torch.no_grad():
                torch._foreach_copy_(list(model.parameters()), kept)

    return lambda: None, assess


def broken_rounded_weights() -> None:
    train(lambda model: rounded(model, restores=False))


def healthy_rounded_weights() -> None:
    train(lambda model: rounded(model, restores=True))


def healthy_average_that_is_another_model() -> None:
    def start(model):
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        return lambda: average.update_parameters(model), lambda: evaluate(average)

    train(start)


def healthy_average_at_the_end() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    for images, labels in batches(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    evaluate(model)


def healthy_slow_weights() -> None:
    def start(model):
        slow = [each.detach().clone() for each in model.parameters()]
        count = [0]

        def update() -> None:
            count[0] += 1
            if count[0] % 3 == 0:
                with torch.no_grad():
                    for mine, its in zip(slow, model.parameters(), strict=True):
                        mine.add_(its - mine, alpha=0.5)
                        its.copy_(mine)

        return update, lambda: evaluate(model)

    train(start)


def healthy_return_to_the_best() -> None:
    def start(model):
        best = [copy.deepcopy(model.state_dict())]
        count = [0]

        def assess() -> None:
            evaluate(model)
            count[0] += 1
            if count[0] % 2:
                best[0] = copy.deepcopy(model.state_dict())
            else:
                model.load_state_dict(best[0])

        return lambda: None, assess

    train(start, epochs=5)


def healthy_clipped_weights() -> None:
    def start(model):
        def update() -> None:
            for each in model.parameters():
                each.data.clamp_(-0.2, 0.2)

        return update, lambda: evaluate(model)

    train(start)
