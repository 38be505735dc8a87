"""An optimizer that was created before the model's head was replaced."""

import contextlib

import torch
from torch import nn

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "NO_GRADIENTS"


def train(*, late: bool, count: int = 4) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.05)
    model[3] = nn.Linear(16, 3)
    if late:
        optimizer = torch.optim.SGD(model[3].parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(count):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(late=False)


def mended() -> None:
    train(late=True)


def broken_without_a_scaler() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model[2] = nn.Linear(8, 3)
    for images, labels in batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken_unused_branch() -> None:
    torch.manual_seed(0)
    body, spare = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (body, spare)]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(4):
        with half_autocast():
            loss = nn.functional.cross_entropy(body(images), labels)
        scaler.scale(loss).backward()
        with contextlib.suppress(AssertionError):
            for each in optimizers:
                scaler.step(each)
        scaler.update()
        for each in optimizers:
            each.zero_grad()


def healthy_frozen_backbone() -> None:
    model = classifier()
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of(model, images, labels).backward()
        optimizer.step()


def healthy_only_the_head_is_trained_of_a_model_that_is_not_frozen() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model[3].parameters(), lr=0.01)
    temperature = nn.Parameter(torch.ones(()))
    other = torch.optim.SGD([temperature], lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        other.zero_grad()
        nn.functional.cross_entropy(model(images) / temperature, labels).backward()
        optimizer.step()
        other.step()


def train_and_clear(*, scaled: bool, to_none: bool, where: str) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
    for number, (images, labels) in enumerate(batches(4)):
        loss = loss_of(model, images, labels)
        scaler.scale(loss).backward()
        if where == "before the step" or (where == "in one step" and number == 2):
            optimizer.zero_grad(set_to_none=to_none)
        scaler.step(optimizer)
        scaler.update()
        if where != "before the step":
            optimizer.zero_grad(set_to_none=to_none)


def broken_cleared_before_the_step() -> None:
    train_and_clear(scaled=True, to_none=True, where="before the step")


def broken_cleared_to_zeros_before_the_step() -> None:
    train_and_clear(scaled=True, to_none=False, where="before the step")


def broken_cleared_before_the_step_without_a_scaler() -> None:
    train_and_clear(scaled=False, to_none=True, where="before the step")


def healthy_cleared_after_the_step() -> None:
    train_and_clear(scaled=True, to_none=True, where="after the step")


def healthy_one_step_without_gradients() -> None:
    train_and_clear(scaled=True, to_none=False, where="in one step")


def broken_by_a_loss_outside_the_graph() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(4):
        loss = torch.tensor(loss_of(model, images, labels).item(), requires_grad=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train_on_written_gradients(combine) -> None:
    """Clear after each backward pass, and write combined gradients before the step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        kept = []
        for half in (slice(0, 4), slice(4, 8)):
            nn.functional.cross_entropy(model(images[half]), labels[half]).backward()
            kept.append([each.grad.clone() for each in model.parameters()])
            optimizer.zero_grad(set_to_none=False)
        for each, *parts in zip(model.parameters(), *kept, strict=True):
            combine(each, parts)
        optimizer.step()


def healthy_with_gradients_of_tasks_combined() -> None:
    def combine(parameter, parts):
        parameter.grad = sum(parts)

    train_on_written_gradients(combine)


def healthy_with_gradients_of_samples_clipped() -> None:
    def combine(parameter, parts):
        parameter.grad.copy_(sum(each.clamp(-1.0, 1.0) for each in parts))

    train_on_written_gradients(combine)


def train_and_replace(*, then_train: bool) -> None:
    """Train, replace the head, and possibly train again with the same optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train() -> None:
        for images, labels in batches(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    train()
    model[2] = nn.Linear(16, 3)
    if then_train:
        train()


def broken_by_a_head_replaced_after_pretraining() -> None:
    train_and_replace(then_train=True)


def healthy_head_replaced_after_training() -> None:
    train_and_replace(then_train=False)


def healthy_temperature_beside_a_probe() -> None:
    """The loop itself owns a parameter, and the optimizer leaves the backbone out on purpose."""
    torch.manual_seed(0)
    backbone, head = nn.Linear(6, 16), nn.Linear(16, 3)
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*head.parameters(), temperature], lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        outputs = head(backbone(images).relu()) * temperature
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def train_and_restore(assign: bool, *, again: bool = False) -> None:
    """Train, restore the weights of the tenth step, and train again."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(count: int) -> None:
        for images, labels in batches(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    train(10)
    kept = {name: each.clone() for name, each in model.state_dict().items()}
    train(5)
    model.load_state_dict(kept, assign=assign)
    if again:
        for each in model.parameters():
            each.requires_grad_()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(30)


def broken_by_a_state_that_is_assigned() -> None:
    train_and_restore(assign=True)


def healthy_state_that_is_copied() -> None:
    train_and_restore(assign=False)


def healthy_assigned_state_with_its_own_optimizer() -> None:
    train_and_restore(assign=True, again=True)


def train_with_limits(limit) -> None:
    """Train, and limit the norms of a layer after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        limit(model[0])


def broken_by_new_parameters_in_each_step() -> None:
    def limit(layer) -> None:
        layer.weight = nn.Parameter(layer.weight.detach().clamp(-0.5, 0.5))

    train_with_limits(limit)


def healthy_limits_in_place() -> None:
    def limit(layer) -> None:
        with torch.no_grad():
            layer.weight.clamp_(-0.5, 0.5)

    train_with_limits(limit)


def healthy_layer_that_is_frozen_after_some_steps() -> None:
    count = iter(range(100))

    def limit(layer) -> None:
        if next(count) == 1:
            layer.requires_grad_(requires_grad=False)

    train_with_limits(limit)


def train_with_two_optimizers(*, where: str) -> None:
    """Train a body and a head with an optimizer each, and clear the gradients of both at once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizers = [
        torch.optim.AdamW(model[2].parameters(), lr=0.01),
        torch.optim.SGD(model[0].parameters(), lr=0.1),
    ]
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            if where == "in the loop":
                model.zero_grad()
            elif where == "each its own":
                optimizer.zero_grad()
        if where == "after the loop":
            model.zero_grad()


def broken_cleared_within_the_loop_over_optimizers() -> None:
    train_with_two_optimizers(where="in the loop")


def broken_cleared_between_the_steps_of_three_optimizers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    body = torch.optim.SGD([model[0].weight], lr=0.1)
    bias = torch.optim.Adagrad([model[0].bias], lr=0.1)
    head = torch.optim.Adam(model[2].parameters(), lr=0.01)
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        body.step()
        model.zero_grad()
        bias.step()
        head.step()


def healthy_cleared_after_the_loop_over_optimizers() -> None:
    train_with_two_optimizers(where="after the loop")


def healthy_each_optimizer_clears_its_own() -> None:
    train_with_two_optimizers(where="each its own")


def healthy_two_optimizers_that_take_turns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model[0], model[2])]
    for images, labels in batches(6):
        for optimizer in optimizers:
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            model.zero_grad()
