"""Twenty tasks of a third author, who knew neither the rule of advice nor its earlier results.

Their losses, networks and data are of other kinds than those of the other files: likelihoods,
margins, rankings, chains, equations. Some have no weakness in half precision that is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sklearn import datasets
from torch import nn
from torch.nn import functional

from ranking import third_data as data
from ranking import third_losses as losses
from ranking.third_images import ConvNext, Field, Radial, UNet, Vae
from ranking.third_networks import (
    DeepSet,
    Embedder,
    Energy,
    Gat,
    Physical,
    Prices,
    Ranker,
    RealNvp,
)
from ranking.third_sequences import Crf, Flowing, Listener, LstmWriter, TiedGpt, WaveNet
from ranking.unseen import with_
from ranking.unseen_networks import perceptron

if TYPE_CHECKING:
    from ranking.tasks import Task


def third() -> list[Task]:
    """Return the twenty tasks."""
    rows = [*_images(), *_sequences(), *_others()]
    return [
        losses.Judged(f"{name}, third", model, *samples, made, criterion, size)
        for name, model, samples, made, criterion, size in rows
    ]


def _images() -> list[Any]:
    optim, (pixels, classes) = torch.optim, data.pixels()
    adamw = with_(optim.AdamW, lr=4e-3, weight_decay=0.05)
    faster = with_(optim.Adam, lr=0.01)
    fine = with_(optim.Adam, lr=5e-3, betas=(0.9, 0.99), eps=1e-15)
    adagrad = with_(optim.Adagrad, lr=0.02)
    rmsprop = with_(optim.RMSprop, lr=0.02)
    shown = (pixels / 8 - 1, classes)
    return [
        (
            "digits, ConvNeXt of layer scale 1e-6, AdamW",
            lambda: ConvNext(10),
            shown,
            adamw,
            losses.classes,
            32,
        ),
        ("discs, U-Net of Dice, Adam", UNet, data.discs(), faster, losses.dice, 16),
        ("digits, VAE of summed pixels, Adam", Vae, data.latent(), faster, losses.evidence, 64),
        (
            "photograph, field of Fourier features, Adam, eps 1e-15",
            Field,
            data.photograph(),
            fine,
            functional.mse_loss,
            256,
        ),
        (
            "digits, triplets of gated embeddings, Adagrad",
            lambda: Embedder(64),
            data.triplets(),
            adagrad,
            losses.triplets,
            32,
        ),
        (
            "raw digits, Gaussians of squared distances, RMSprop",
            lambda: Radial(64, 10),
            (pixels, classes),
            rmsprop,
            losses.classes,
            64,
        ),
    ]


def _sequences() -> list[Any]:
    optim = torch.optim
    signs, patients = data.letters(datasets.load_diabetes().DESCR)
    known, flowers = data.words(datasets.load_iris().DESCR)
    sgd = with_(optim.SGD, lr=2.0)
    adamw = with_(optim.AdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    adam, adamax = with_(optim.Adam, lr=0.02), with_(optim.Adamax, lr=0.02)
    momentum = with_(optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-4)
    nadam = with_(optim.NAdam, lr=3e-3)
    return [
        (
            "letters, tied LSTM, SGD of rate 2",
            lambda: LstmWriter(signs),
            patients,
            sgd,
            losses.classes,
            32,
        ),
        (
            "words, tied GPT, AdamW",
            lambda: TiedGpt(known, data.LENGTH),
            flowers,
            adamw,
            losses.classes,
            16,
        ),
        (
            "tracks, CTC of a GRU, Adamax",
            lambda: Listener(data.LETTERS, data.LETTERS + 1),
            data.spoken(),
            adamax,
            losses.ctc,
            32,
        ),
        (
            "tags, CRF of 48 words, momentum",
            lambda: Crf(40, data.TAGS),
            data.tagged(),
            momentum,
            losses.mean,
            32,
        ),
        (
            "loads, WaveNet of quantiles, NAdam",
            lambda: WaveNet(3),
            data.bursts(),
            nadam,
            losses.quantiles,
            64,
        ),
        (
            "hunters, neural ODE, Adam",
            lambda: Flowing(1.0),
            data.hunters(),
            adam,
            functional.mse_loss,
            32,
        ),
    ]


def _others() -> list[Any]:
    optim, cars = torch.optim, data.cars()
    heavy = with_(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)
    adam, small = with_(optim.Adam, lr=5e-3), with_(optim.Adam, lr=0.01)
    decayed = with_(optim.Adam, lr=5e-3, weight_decay=5e-4)
    sgd = with_(optim.SGD, lr=1e-5, momentum=0.9)
    rmsprop = with_(optim.RMSprop, lr=1e-4, alpha=0.9, eps=1e-10)
    adagrad, adamw = with_(optim.Adagrad, lr=0.02), with_(optim.AdamW, lr=2e-3, amsgrad=True)
    priced = float(cars[1].mean()), float(cars[1].std())
    return [
        (
            "rare frauds, weighted ReLU MLP, Nesterov",
            lambda: perceptron(10, 1, nn.ReLU),
            data.frauds(),
            heavy,
            losses.rare,
            128,
        ),
        ("cars, prices in euros, Adam", lambda: Prices(5, *priced), cars, adam, losses.huber, 32),
        (
            "molecules, GAT, Adam with decay",
            lambda: Gat(data.NODES, data.COLUMNS, 4),
            data.molecules(),
            decayed,
            losses.classes,
            64,
        ),
        (
            "crowds, DeepSets of sums of 200, SGD",
            lambda: DeepSet(3),
            data.crowds(),
            sgd,
            losses.squares,
            16,
        ),
        ("moons, RealNVP, AMSGrad", RealNvp, data.moons(), adamw, losses.unlikely, 128),
        (
            "cancer among noise, energies over 0.02, RMSprop, eps 1e-10",
            lambda: Energy(30, 0.02),
            data.among_noise(),
            rmsprop,
            losses.classes,
            32,
        ),
        (
            "Poisson equation by differences, tanh MLP, Adam",
            lambda: Physical(0.05),
            data.poisson(),
            small,
            losses.residual,
            64,
        ),
        (
            "raw documents, ListMLE behind BatchNorm, Adagrad",
            lambda: Ranker(8),
            data.queries(),
            adagrad,
            losses.listed,
            16,
        ),
    ]
