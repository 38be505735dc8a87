"""Features of a sample that is all zeros, divided by their norm, in fp16."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Around, batches, half_autocast, half_steps

CODE = "EPS_ROUNDS_TO_ZERO"


def normed(features: torch.Tensor, eps: float) -> torch.Tensor:
    present = torch.arange(len(features))[:, None] > 0
    return functional.normalize((features * present).half(), eps=eps)


def broken() -> None:
    half_steps(Around(lambda features: normed(features, 1e-12)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features, 1e-4)))


def broken_under_a_root() -> None:
    def own(features):
        zeros = (features - features).half()
        return features + (zeros.square().sum(-1, keepdim=True) + 1e-8).sqrt()

    half_steps(Around(own))


def broken_in_a_deviation() -> None:
    def own(features):
        present = (features * (torch.arange(len(features))[:, None] > 0)).half()
        centred = present - present.mean(-1, keepdim=True)
        return centred / (present.std(-1, keepdim=True) + 1e-8)

    half_steps(Around(own))


def broken_by_the_default_of_torch() -> None:
    def own(features):
        features = features.half() * (torch.arange(len(features))[:, None] > 0)
        return functional.normalize(features)

    half_steps(Around(own))


def broken_in_a_logarithm() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 60).half().softmax(-1) + 1e-8
        return -probabilities.log().gather(1, labels[:, None]).mean()

    half_steps(Around(lambda features: features), loss_function)


def broken_in_a_cosine() -> None:
    def own(features):
        other = features.half()
        return features * functional.cosine_similarity(other * 0, other, eps=1e-8)[:, None]

    half_steps(Around(own))


def healthy_in_fp32() -> None:
    half_steps(
        Around(
            lambda features: functional.normalize(
                features.float() * (features[:, :1] > 0), eps=1e-8
            )
        )
    )


def healthy_for_what_is_not_zero() -> None:
    def own(features):
        return features.half() / (features.half().norm(dim=-1, keepdim=True) + 1e-8)

    half_steps(Around(own))


def broken_by_a_bound_that_is_a_tensor() -> None:
    def own(features):
        present = (features * (torch.arange(len(features))[:, None] > 0)).half()
        norm = present.square().sum(-1, keepdim=True).sqrt()
        return present / torch.maximum(norm.detach(), norm.new_tensor(1e-9))

    half_steps(Around(own))


def healthy_while_another_gradient_overflows() -> None:
    # The eps is used in fp32. Only the search for the loss scale makes gradients overflow.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for images, _ in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            guess = model(images * 16).sigmoid()
        loss = -(guess.float() + 1e-8).log().sum()
        scaler.scale(loss * 3).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_in_one_of_two_lines() -> None:
    def own(features, eps=1e-8):
        zeros = (features - features).half()
        first = (zeros + 1 + eps).log()
        second = (zeros + eps).log()
        return features + first + second

    half_steps(Around(own))
