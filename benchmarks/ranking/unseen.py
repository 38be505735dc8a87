"""Twenty unseen tasks, by an author who did not know the measure, before it was run on them.

They were chosen for what people train in low precision, with the optimizers and hyper-parameters
that they choose. None has the network, data and optimizer of a task in the other files. Tasks with
a well-known weakness in half precision are marked by it in their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sklearn import datasets
from torch import nn
from torch.nn import functional

from ranking import unseen_data as data
from ranking.tasks import Task, scaled
from ranking.unseen_images import (
    ClassTokenVit,
    ConvAutoencoder,
    Denoiser,
    MobileNet,
    ResidualCnn,
    SuperResolution,
)
from ranking.unseen_networks import (
    FactorizationMachine,
    Gin,
    TwoTowers,
    behind_batchnorm,
    perceptron,
)
from ranking.unseen_sequences import T5, AttendedGru, DeepLstm, Encoder, Llama, RunningAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    Made = Callable[[nn.Module], torch.optim.Optimizer]


def unseen() -> list[Task]:
    """Return the twenty tasks."""
    return [*_images(), *_sequences(), *_others()]


def _images() -> list[Task]:
    pixels, photographs = data.patches()
    patches = (pixels / 255 - 0.5) / 0.25, photographs
    larger = functional.avg_pool2d(pixels, 2), pixels
    digits = torch.tensor(datasets.load_digits().data, dtype=torch.float32) / 8 - 1
    return [
        _task(
            "photographs, residual CNN with BatchNorm, SGD",
            lambda: ResidualCnn(4),
            patches,
            with_(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4),
        ),
        _task(
            "photographs, ViT with class token, AdamW",
            lambda: ClassTokenVit(4),
            patches,
            with_(torch.optim.AdamW, lr=1e-3, weight_decay=0.05),
        ),
        _task(
            "photographs, MobileNet with squeeze-excitation, RMSprop, eps 1e-3",
            lambda: MobileNet(4),
            patches,
            with_(torch.optim.RMSprop, lr=0.01, alpha=0.9, momentum=0.9, eps=1e-3),
        ),
        _task(
            "digits, diffusion denoiser with GroupNorm, Adam",
            Denoiser,
            data.noisy(digits.reshape(-1, 1, 8, 8)),
            with_(torch.optim.Adam, lr=1e-3),
        ),
        _task(
            "photographs, super-resolution of raw pixels without norms, Adam",
            SuperResolution,
            larger,
            with_(torch.optim.Adam, lr=1e-3),
        ),
        _task(
            "photographs, convolutional autoencoder, Nesterov",
            ConvAutoencoder,
            (patches[0], patches[0]),
            with_(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        ),
    ]


def _sequences() -> list[Task]:
    letters, medicine = data.prose(datasets.load_breast_cancer().DESCR)
    signs, cellar = data.prose(datasets.load_wine().DESCR)
    return [
        _task(
            "prose, Llama with rotary positions, AdamW",
            lambda: Llama(letters, data.LENGTH),
            medicine,
            with_(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
        ),
        _task(
            "prose, mixture of two of four experts, AdamW",
            lambda: Llama(signs, data.LENGTH, depth=1, experts=4),
            cellar,
            with_(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        ),
        _task(
            "hidden words, post-norm encoder, Adam, eps 1e-9",
            lambda: Encoder(data.WORDS + 1, data.LENGTH, data.WORDS, pooled=False),
            data.hidden_words(),
            with_(torch.optim.Adam, lr=1e-3, betas=(0.9, 0.98), eps=1e-9),
        ),
        _task(
            "sorting, T5 of large logits, unscaled attention, Adafactor",
            lambda: T5(data.WORDS, 10),
            data.unsorted(),
            with_(torch.optim.Adafactor, lr=1e-2),
        ),
        _task(
            "topics, BERT at a tiny rate, AdamW",
            lambda: Encoder(data.WORDS, data.LENGTH, 4, pooled=True),
            data.topics(),
            with_(torch.optim.AdamW, lr=5e-5),
        ),
        _task(
            "topics, GRU with attention by exp of raw scores, Adadelta, eps 1e-6",
            lambda: AttendedGru(data.WORDS, 4),
            data.topics(),
            with_(torch.optim.Adadelta, lr=1.0),
        ),
        _task(
            "demand, two-layer LSTM, Adam",
            lambda: DeepLstm(1),
            data.demand(),
            with_(torch.optim.Adam, lr=3e-3),
        ),
        _task(
            "raw walks, linear attention of long sums, RAdam",
            lambda: RunningAttention(2, 4),
            data.walks(),
            with_(torch.optim.RAdam, lr=3e-3),
        ),
    ]


def _others() -> list[Task]:
    digits = scaled(datasets.load_digits())[0].reshape(-1, 2, 32)
    cancer, friedman = datasets.load_breast_cancer(), datasets.make_friedman2(512, random_state=20)
    return [
        # The match comes first in each row of logits.
        _task(
            "halves of digits, CLIP with a learned temperature, AdamW, eps 1e-6",
            lambda: TwoTowers(32),
            (digits, torch.zeros(len(digits), dtype=torch.int64)),
            with_(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2),
        ),
        _task("graphs, GIN of sums, Adam", lambda: Gin(3), data.graphs(), with_(torch.optim.Adam)),
        _task(
            "raw cancer, MLP behind BatchNorm, NAdam",
            lambda: behind_batchnorm(30, 2),
            data.raw(cancer.data, cancer.target),
            with_(torch.optim.NAdam, lr=2e-3),
        ),
        _task(
            "Friedman 2, factorization machine of raw squares, Adagrad",
            lambda: FactorizationMachine(4),
            data.raw(*friedman),
            with_(torch.optim.Adagrad, lr=1e-2),
        ),
        _task(
            "currents of 1e-4, tanh MLP of small gradients, SGD",
            lambda: perceptron(3, 1, nn.Tanh),
            data.currents(),
            with_(torch.optim.SGD, lr=0.1, momentum=0.9),
        ),
        _task(
            "poles, value network of growing values, RMSprop, eps 0.01",
            lambda: perceptron(4, 1, nn.ReLU),
            data.falling_poles(),
            with_(torch.optim.RMSprop, lr=1e-3, alpha=0.95, eps=0.01),
        ),
    ]


def with_(optimizer: type[torch.optim.Optimizer], **options: Any) -> Made:
    """Return a maker of an optimizer with these options, else torch's own."""
    return lambda model: optimizer(model.parameters(), **options)


def _task(name: str, model: Callable[[], nn.Module], samples: data.Samples, made: Made) -> Task:
    return Task(f"{name}, unseen", model, *samples, made)
