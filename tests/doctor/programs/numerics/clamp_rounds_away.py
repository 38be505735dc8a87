"""A probability that is clamped to a limit just below 1; the limit is 1 in fp16."""

import torch
from torch.nn import functional

from doctor.loops import Around, half_steps

CODE = "CLAMP_ROUNDS_AWAY"


def train(bound: float) -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 60).sigmoid().clamp(bound, 1 - bound)
        wanted = functional.one_hot(labels, 3)
        likelihood = wanted * probabilities.log() + (1 - wanted) * (-probabilities).log1p()
        return -likelihood.float().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken() -> None:
    train(1e-6)


def mended() -> None:
    train(1e-3)


def broken_in_an_inverse_tangent() -> None:
    bound = 1 - 1e-6
    half_steps(Around(lambda features: (features.half() * 60).tanh().clamp(-bound, bound).atanh()))


def broken_in_bf16() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 60).bfloat16().sigmoid().clamp(max=1 - 1e-4)
        return -(1 - probabilities).log().float().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_in_logit() -> None:
    def loss_function(outputs, labels):
        return torch.logit((outputs * 60).half().sigmoid(), eps=1e-6).float().mean()

    half_steps(Around(lambda features: features), loss_function)


def healthy_in_fp32() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs.float() * 60).sigmoid().clamp(1e-6, 1 - 1e-6)
        return -(-probabilities).log1p().mean()

    half_steps(Around(lambda features: features), loss_function)


def healthy_for_what_is_away_from_one() -> None:
    def loss_function(outputs, labels):
        return -outputs.half().sigmoid().clamp(1e-6, 1 - 1e-6).log().float().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_by_bounds_that_are_tensors() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 60).half().sigmoid()
        low, high = probabilities.new_tensor(1e-6), probabilities.new_tensor(1 - 1e-6)
        return -(-probabilities.clamp(low, high)).log1p().float().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_by_the_minimum_of_a_filled_tensor() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 60).half().sigmoid()
        bounded = torch.minimum(probabilities, torch.full_like(probabilities, 1 - 1e-6))
        return -(-bounded).log1p().float().mean()

    half_steps(Around(lambda features: features), loss_function)


def of_targets(targets_of) -> None:
    """Train on targets that are computed outside the graph from actions near 1."""
    actions = torch.linspace(0.5, 1.0, 8).bfloat16()

    def loss_function(outputs, labels):
        return (outputs[:, 0] - targets_of(actions).float().mean()).square().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_in_targets_outside_the_graph() -> None:
    of_targets(lambda actions: torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6)))


def healthy_targets_that_are_clamped_in_fp32() -> None:
    of_targets(lambda actions: torch.atanh(actions.float().clamp(-1 + 1e-6, 1 - 1e-6)))


def healthy_targets_with_a_limit_that_bf16_has() -> None:
    of_targets(lambda actions: torch.atanh(actions.clamp(-0.99, 0.99)))


def of_the_larger_and_the_smaller(bound: float, form: torch.dtype) -> None:
    """Limit numbers in half precision by bounds in fp32, without clamp()."""
    low, high = torch.tensor(-bound), torch.tensor(bound)

    def between(features):
        bounded = torch.fmin(torch.fmax((features * 60).to(form).tanh(), low), high)
        return bounded.atanh().float()

    half_steps(Around(between))


def broken_by_bounds_in_fp32_of_numbers_in_half() -> None:
    of_the_larger_and_the_smaller(1 - 1e-4, torch.float16)


def healthy_bounds_of_numbers_in_fp32() -> None:
    of_the_larger_and_the_smaller(1 - 1e-4, torch.float32)


def healthy_bounds_that_half_precision_rounds_to_less_than_one() -> None:
    of_the_larger_and_the_smaller(1 - 1.1e-3, torch.float16)


def before_a_cast(form: torch.dtype) -> None:
    """Clamp in fp32, and compute the logarithm of the rest in another format."""

    def loss_function(outputs, labels):
        probabilities = (outputs.float() * 60).sigmoid().clamp(max=1 - 1e-6)
        return -(-probabilities.to(form)).log1p().float().mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_by_a_cast_after_the_clamp() -> None:
    before_a_cast(torch.float16)


def healthy_clamp_and_logarithm_in_fp32() -> None:
    before_a_cast(torch.float32)
