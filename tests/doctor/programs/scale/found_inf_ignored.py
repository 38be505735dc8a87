"""An optimizer that declares that it reads found_inf, but ignores it."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "FOUND_INF_IGNORED"


class Fused(torch.optim.Optimizer):
    """A fused optimizer, which skips steps in place of the scaler.

    Args:
        parameters: The parameters to train.
        reads: Whether it reads found_inf.
    """

    def __init__(self, parameters, *, reads: bool) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self._step_supports_amp_scaling = True
        self.reads = reads

    @torch.no_grad()
    def step(self) -> None:
        if self.reads and self.found_inf.item():
            return
        for group in self.param_groups:
            for each in group["params"]:
                each.sub_(each.grad / self.grad_scale, alpha=group["lr"])


def train(make, *, worst: int = 3, weight: float = 0.1) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    nn.init.constant_(model.weight[0, :1], weight)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss * (1e9 if number == worst else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(lambda parameters: Fused(parameters, reads=False))


def broken_in_the_first_step() -> None:
    train(lambda parameters: Fused(parameters, reads=False), worst=0)


def mended() -> None:
    train(lambda parameters: Fused(parameters, reads=True))


def healthy_fused() -> None:
    train(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True))


class Around:
    """A wrapper that reads all but `step` from an optimizer.

    Args:
        inner: The optimizer.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def step(self) -> None:
        self.inner.step()


class Through(Around):
    """A wrapper that also passes on what a scaler writes."""

    def __setattr__(self, name: str, value) -> None:
        object.__setattr__(self if name == "inner" else self.inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.inner, name)


def broken_by_a_wrapper_that_keeps_found_inf() -> None:
    train(lambda parameters: Around(torch.optim.SGD(parameters, lr=0.01, fused=True)))


def healthy_with_a_wrapper_that_passes_found_inf_on() -> None:
    train(lambda parameters: Through(torch.optim.SGD(parameters, lr=0.01, fused=True)))


def healthy_with_a_wrapper_around_steps_that_the_scaler_skips() -> None:
    train(lambda parameters: Around(torch.optim.SGD(parameters, lr=0.01)))


class Signs(torch.optim.Optimizer):
    """A fused optimizer that moves weights by the sign of a mean, so they stay finite.

    Args:
        parameters: The parameters to train.
        reads: Whether it reads found_inf.
    """

    _step_supports_amp_scaling = True

    def __init__(self, parameters, *, reads: bool) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.reads = reads

    @torch.no_grad()
    def step(self) -> None:
        if self.reads and self.found_inf.item():
            return
        for group in self.param_groups:
            for each in group["params"]:
                mean = self.state[each].setdefault("mean", torch.zeros_like(each))
                mean.lerp_(each.grad / self.grad_scale, 0.1)
                each.sub_(mean.sign(), alpha=group["lr"])


def broken_with_weights_that_stay_finite() -> None:
    train(lambda parameters: Signs(parameters, reads=False))


def healthy_signs() -> None:
    train(lambda parameters: Signs(parameters, reads=True))


def weights_of_which_one_is_nan() -> None:
    train(lambda parameters: torch.optim.AdamW(parameters, fused=True), weight=float("nan"))
