"""A second optimizer step after the scaler's."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "STEP_BYPASSES_SCALER"


def train(*, doubled: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        if doubled:
            optimizer.step()
        scaler.update()


def broken() -> None:
    train(doubled=True)


def mended() -> None:
    train(doubled=False)


def broken_by_an_optimizer_that_steps_in_the_backward() -> None:
    model = classifier()
    optimizers = {each: torch.optim.SGD([each], lr=1e-4) for each in model.parameters()}
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for images, labels in batches(4):
        scaler.scale(loss_of(model, images, labels)).backward()


def broken_by_inf_that_the_loop_unscales_and_applies() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        for each in model.parameters():
            each.grad /= scaler.get_scale()
        optimizer.step()
