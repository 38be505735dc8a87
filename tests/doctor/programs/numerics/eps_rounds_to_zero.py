"""Features of a sample that is all zeros, divided by their norm, in fp16."""

import torch
from torch.nn import functional

from doctor.loops import Around, half_steps

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
