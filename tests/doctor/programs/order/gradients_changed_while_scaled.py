"""Clipping before unscale_."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "GRADIENTS_CHANGED_WHILE_SCALED"


def train(*, unscale: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(unscale=False)


def mended() -> None:
    train(unscale=True)


def train_with(change) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        change([each.grad for each in model.parameters()])
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_limit_written_by_hand() -> None:
    def limit(gradients) -> None:
        norm = sum(each.pow(2).sum().item() for each in gradients) ** 0.5
        for each in gradients:
            each.mul_(min(1.0, 1 / norm))

    train_with(limit)


def broken_by_noise() -> None:
    train_with(lambda gradients: [each.add_(torch.randn_like(each)) for each in gradients])


def healthy_with_gradients_divided_by_a_count() -> None:
    def divide(gradients) -> None:
        for each in gradients:
            each /= 2  # noqa: PLW2901  # in place, as loops write it

    train_with(divide)


def healthy_with_gradients_halved_at_once() -> None:
    train_with(lambda gradients: torch._foreach_mul_(gradients, 0.5))


def healthy_with_a_mask_on_gradients() -> None:
    train_with(lambda gradients: gradients[0].mul_(torch.eye(16, 6)))


def train_with_hooks(hook) -> None:
    model = classifier()
    for each in model.parameters():
        each.register_hook(hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_hooks_that_clamp() -> None:
    train_with_hooks(lambda gradient: gradient.clamp(-1, 1))


def broken_by_hooks_that_limit_the_norm() -> None:
    train_with_hooks(lambda gradient: gradient / max(1.0, gradient.norm().item()))


def healthy_with_hooks_that_mask() -> None:
    train_with_hooks(
        lambda gradient: gradient * (torch.arange(gradient.numel()) % 2).view_as(gradient)
    )


def healthy_with_hooks_that_multiply_by_a_constant() -> None:
    train_with_hooks(lambda gradient: gradient * 0.1)


def healthy_with_hooks_that_only_look() -> None:
    train_with_hooks(lambda gradient: gradient.norm().item() < 0 or None)


def healthy_with_gradients_that_the_loop_unscales() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        for each in model.parameters():
            each.grad /= scaler.get_scale()
        if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            optimizer.step()


def train_with_hooks_after_accumulation(change) -> None:
    model = classifier()
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(change)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_hooks_that_limit_the_accumulated_norm() -> None:
    def limit(parameter) -> None:
        parameter.grad.mul_((1 / (parameter.grad.norm() + 1e-6)).clamp(max=1.0))

    train_with_hooks_after_accumulation(limit)


def broken_by_hooks_that_put_a_clamped_gradient() -> None:
    def limit(parameter) -> None:
        parameter.grad = parameter.grad.clamp(-0.5, 0.5)

    train_with_hooks_after_accumulation(limit)


def centred(gradient: torch.Tensor) -> torch.Tensor:
    return gradient - gradient.mean(-1, keepdim=True) if gradient.ndim > 1 else gradient


def healthy_with_hooks_that_centre_gradients() -> None:
    train_with_hooks(centred)


def healthy_with_hooks_that_centre_accumulated_gradients() -> None:
    def centre(parameter) -> None:
        parameter.grad = centred(parameter.grad)

    train_with_hooks_after_accumulation(centre)


def healthy_with_hooks_that_halve_accumulated_gradients() -> None:
    def halve(parameter) -> None:
        parameter.grad.mul_(0.5)

    train_with_hooks_after_accumulation(halve)


def healthy_with_a_limit_times_the_scale() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
