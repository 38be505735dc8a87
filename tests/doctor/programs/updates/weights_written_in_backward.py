"""A hook that is meant to clip gradients gets the parameters, and clips them."""

import functools

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "WEIGHTS_WRITTEN_IN_BACKWARD"


def clip_weights(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.clamp_(-0.05, 0.05)


def clip_gradients(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.grad.clamp_(-0.05, 0.05)


def train(prepare, after=lambda model: None, parts: int = 4) -> None:
    """Train the first parts with an optimizer; call `after(model)` after each step."""
    model = classifier()
    optimizer = torch.optim.SGD(model[:parts].parameters(), lr=0.05) if parts else None
    prepare(model)
    for images, labels in batches(6):
        if optimizer:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if optimizer:
            optimizer.step()
        after(model)


def on_each(hook):
    def register(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)

    return register


def broken() -> None:
    train(on_each(clip_weights))


def mended() -> None:
    train(on_each(clip_gradients))


def scaled(factor: float, param: torch.Tensor) -> None:
    param.data = param.data * factor


def broken_by_an_assignment_of_the_data() -> None:
    train(on_each(functools.partial(scaled, 0.5)))


def broken_in_a_lambda() -> None:
    train(on_each(lambda param: (param.data.mul_(0.5), None)[1]))


class Clipping:
    """Clips by the norm."""

    def __call__(self, param: torch.Tensor) -> None:
        if param.grad.norm() > 0.01:
            param.data *= 0.9


def broken_in_an_object() -> None:
    train(on_each(Clipping()))


def broken_in_a_hook_of_the_gradient() -> None:
    """A hook that gets the gradient, but writes the weights of its layer."""

    def prepare(model: nn.Module) -> None:
        for parameter in model.parameters():

            def damped(gradient: torch.Tensor, parameter=parameter) -> torch.Tensor:
                parameter.data.mul_(0.9)
                return gradient

            parameter.register_hook(damped)

    train(prepare)


def broken_in_a_hook_of_a_layer() -> None:
    def prepare(model: nn.Module) -> None:
        def hook(layer: nn.Module, given, made) -> None:
            layer.weight.data.mul_(0.9)

        model[3].register_full_backward_hook(hook)

    train(prepare)


def healthy_steps_in_backward() -> None:
    def prepare(model: nn.Module) -> None:
        optimizers = {each: torch.optim.SGD([each], lr=0.05) for each in model.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        on_each(step)(model)

    train(prepare, parts=0)


def healthy_steps_by_hand_in_backward() -> None:
    def step(parameter: torch.Tensor) -> None:
        parameter.data.add_(parameter.grad, alpha=-0.05)
        parameter.grad = None

    train(lambda model: on_each(step)(model[3]), parts=3)


def healthy_weights_clipped_after_the_step() -> None:
    def clip(model: nn.Module) -> None:
        for parameter in model.parameters():
            clip_weights(parameter)

    train(lambda model: None, clip)


def healthy_weights_put_back_in_backward() -> None:
    """Weights are binary in the forward pass, and have their own values in the step."""
    kept = {}

    def prepare(model: nn.Module) -> None:
        def binary(layer: nn.Module, given) -> None:
            kept[layer.weight] = layer.weight.data.clone()
            layer.weight.data = layer.weight.data.sign() * layer.weight.data.abs().mean()

        model[3].register_forward_pre_hook(binary)
        model[3].weight.register_post_accumulate_grad_hook(
            lambda param: (param.data.copy_(kept[param]), None)[1]
        )

    train(prepare)


def healthy_hooks_that_read() -> None:
    norms = []

    def read(parameter: torch.Tensor) -> None:
        norms.append(parameter.grad.norm() / parameter.detach().norm())

    train(on_each(read))


def healthy_gradients_of_a_mask() -> None:
    def prepare(model: nn.Module) -> None:
        masks = {each: torch.rand_like(each).gt(0.5) for each in model.parameters()}
        on_each(lambda each: (each.grad.mul_(masks[each]), None)[1])(model)

    train(prepare)


def broken_without_an_effect_so_far() -> None:
    """No weight is above the limit yet, but no gradient is clipped either."""

    def clip(parameter: torch.Tensor) -> None:
        parameter.data.clamp_(-10.0, 10.0)
        with torch.no_grad():
            torch.clamp_(parameter, -10.0, 10.0)

    train(on_each(clip))
