"""A probability clamped to just below 1, which is 1 in fp16."""

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
