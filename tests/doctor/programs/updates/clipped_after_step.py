"""The clipping is below the step, where it has no effect."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "CLIPPED_AFTER_STEP"


def train(*, late: bool, scaled: bool = True) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=scaled)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if not late:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        if late:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()


def broken() -> None:
    train(late=True)


def mended() -> None:
    train(late=False)


def broken_without_a_scaler() -> None:
    train(late=True, scaled=False)


def train_then(after) -> None:
    """Train without a scaler, and call a function after each step, with its number."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        after(model, number)


def broken_by_value() -> None:
    def after(model: nn.Module, _: int) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)

    train_then(after)


def healthy_norm_that_is_only_logged() -> None:
    def after(model: nn.Module, _: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))

    train_then(after)


def healthy_second_optimizer_after_the_first() -> None:
    first, second = nn.Linear(6, 6), classifier()
    both = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (first, second)]
    for images, labels in batches(6):
        for each in both:
            each.zero_grad()
        nn.functional.cross_entropy(second(first(images)), labels).backward()
        for model, optimizer in zip((first, second), both, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def healthy_step_at_the_start_of_the_loop() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(6)):
        if number:
            optimizer.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def healthy_norm_that_is_computed_after_the_step() -> None:
    def after(model: nn.Module, _: int) -> None:
        nn.utils.get_total_norm([each.grad for each in model.parameters()])

    train_then(after)


def healthy_gradients_kept_small_for_a_later_use() -> None:
    """Clipping follows only some steps."""

    def after(model: nn.Module, number: int) -> None:
        if number >= 4:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train_then(after)


def healthy_clipping_of_all_parameters_before_the_second_step() -> None:
    generator, critic = nn.Linear(6, 6), classifier()
    first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (critic, generator))
    for images, labels in batches(6):
        nn.functional.cross_entropy(critic(images), labels).backward()
        first.step()
        first.zero_grad()
        nn.functional.cross_entropy(critic(generator(images)), labels).neg().backward()
        nn.utils.clip_grad_norm_([*generator.parameters(), *critic.parameters()], 1.0)
        second.step()
        first.zero_grad()
        second.zero_grad()


def train_with(hook_of) -> None:
    """Train; `hook_of(model, optimizer)` adds a hook of the optimizer."""
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hook_of(model, optimizer)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def clip_of(model: nn.Module, limit: float = 1e-3):
    def clip(*_) -> None:
        gradients = [each.grad for each in model.parameters()]
        norm = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)

    return clip


def broken_in_a_hook_after_the_step() -> None:
    train_with(lambda model, optimizer: optimizer.register_step_post_hook(clip_of(model)))


def broken_by_hand() -> None:
    def after(model: nn.Module, _: int) -> None:
        gradients = [each.grad for each in model.parameters()]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        for each in gradients:
            each.mul_((1e-3 / norm).clamp(max=1.0))

    train_then(after)


def healthy_hook_before_the_step() -> None:
    train_with(lambda model, optimizer: optimizer.register_step_pre_hook(clip_of(model)))


def healthy_hook_that_only_measures() -> None:
    train_with(
        lambda model, optimizer: optimizer.register_step_post_hook(clip_of(model, float("inf")))
    )


def healthy_limit_of_what_the_next_step_keeps() -> None:
    """Gradients that are not cleared but halved are a momentum, which the hook limits."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(clip_of(model))
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for each in model.parameters():
            each.grad.mul_(0.5)
