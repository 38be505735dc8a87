"""Samples of the unseen tasks: made here, or of the sets and pictures that scikit-learn brings."""

from __future__ import annotations

import math

import torch
from sklearn import datasets
from torch.nn import functional

Samples = tuple[torch.Tensor, torch.Tensor]
SAMPLES, LENGTH, WORDS, NODES = 512, 16, 20, 12


def pictures() -> torch.Tensor:
    """Return two photographs at a quarter of their size, (2, 3, 106, 160), pixels of 0 to 255."""
    shown = torch.stack([torch.tensor(each) for each in datasets.load_sample_images().images])
    return functional.avg_pool2d(shown.permute(0, 3, 1, 2).float(), 4)


def patches() -> Samples:
    """Return patches of 8 x 8 pixels; the class is the photograph, and its upper or lower half."""
    cut = pictures().unfold(2, 8, 8).unfold(3, 8, 8)  # (2, 3, 13, 20, 8, 8)
    photograph, row = torch.arange(2)[:, None, None], torch.arange(13)[:, None] >= 7
    classes = (2 * photograph + row).expand(2, 13, 20)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(0, 2), classes.flatten()


def noisy(images: torch.Tensor) -> Samples:
    """Return images (N, 1, 8, 8) with noise, their steps as a second channel, and the noise."""
    chance = torch.Generator().manual_seed(11)
    step = torch.randint(0, 1000, (len(images), 1, 1, 1), generator=chance)
    noise = torch.randn(images.shape, generator=chance)
    kept = torch.cos(step / 1000 * math.pi / 2)
    mixed = kept * images + (1 - kept**2).sqrt() * noise
    return torch.cat([mixed, step.float().expand_as(images)], 1), noise


def prose(text: str) -> tuple[int, Samples]:
    """Return how many letters a text has, and pieces of it, each with what follows."""
    text = " ".join(text.lower().split())
    letters = sorted(set(text))
    coded = torch.tensor([letters.index(each) for each in text])
    before, after = (part.unfold(0, LENGTH, 3).contiguous() for part in (coded[:-1], coded[1:]))
    return len(letters), (before, after)


def unsorted() -> Samples:
    """Return tokens in any order, and in ascending order."""
    tokens = torch.randint(0, WORDS, (2048, 10), generator=torch.Generator().manual_seed(12))
    return tokens, tokens.sort(1).values


def hidden_words() -> Samples:
    """Return sentences that count up by a step of their own, of which some words are masked.

    The mask is token `WORDS`.
    """
    chance = torch.Generator().manual_seed(13)
    start = torch.randint(0, WORDS, (SAMPLES, 1), generator=chance)
    step = torch.randint(1, 4, (SAMPLES, 1), generator=chance)
    words = (start + step * torch.arange(LENGTH)) % WORDS
    masked = torch.rand(words.shape, generator=chance) < 0.15
    return words.masked_fill(masked, WORDS), words


def topics() -> Samples:
    """Return bags of words; the class is the topic, by which some words are more frequent."""
    chance = torch.Generator().manual_seed(14)
    labels = torch.randint(0, 4, (SAMPLES,), generator=chance)
    frequent = torch.randn(4, WORDS, generator=chance).exp()
    return torch.multinomial(frequent[labels], LENGTH, replacement=True, generator=chance), labels


def demand() -> Samples:
    """Return 24 hours of a daily and a faster cycle in noise, and the hour that follows."""
    chance = torch.Generator().manual_seed(15)
    phase = torch.rand(SAMPLES, 2, generator=chance) * 2 * math.pi
    hours = torch.arange(25)
    series = torch.sin(hours * 2 * math.pi / 24 + phase[:, :1])
    series = series + 0.5 * torch.sin(hours * 2 * math.pi / 7 + phase[:, 1:])
    series = series + 0.1 * torch.randn(series.shape, generator=chance)
    return series[:, :-1, None], series[:, -1]


def walks() -> Samples:
    """Return random walks in the plane, 48 steps, as they are; the class is where they drift."""
    chance = torch.Generator().manual_seed(16)
    labels = torch.randint(0, 4, (SAMPLES,), generator=chance)
    angle = labels[:, None] * math.pi / 2
    drift = 0.3 * torch.stack([angle.cos(), angle.sin()], -1)
    return (torch.randn(SAMPLES, 48, 2, generator=chance) + drift).cumsum(1), labels


def graphs() -> Samples:
    """Return adjacencies of 12 nodes; the class is random edges, a ring, or a few hubs."""
    chance = torch.Generator().manual_seed(17)
    labels = torch.randint(0, 3, (SAMPLES,), generator=chance)
    place = torch.arange(NODES)
    apart = (place[:, None] - place).abs()
    ring = (torch.minimum(apart, NODES - apart) <= 2).float()
    hubs = (torch.minimum(place[:, None], place) < 3).float()
    wanted = torch.stack([torch.full((NODES, NODES), 0.36), 0.8 * ring, 0.75 * hubs])[labels]
    edges = (torch.rand(wanted.shape, generator=chance) < wanted).float().triu(1)
    return edges + edges.transpose(1, 2), labels


def currents() -> Samples:
    """Return three settings of a circuit, and currents of about 1e-4 ampere."""
    settings = torch.rand(SAMPLES, 3, generator=torch.Generator().manual_seed(18)) * 2 - 1
    voltage, light, heat = settings.unbind(1)
    return settings, 1e-4 * (torch.tanh(3 * voltage) * (1 + 0.5 * light) + 0.3 * heat**2)


def falling_poles() -> Samples:
    """Return states of a pole that is pushed late, and the discounted steps until it falls."""
    chance = torch.Generator().manual_seed(19)
    states = (torch.rand(2048, 4, generator=chance) * 2 - 1) * torch.tensor([1, 1, 0.2, 0.5])
    place, speed, angle, turn = states.unbind(1)
    returns, upright = torch.zeros(2048), torch.ones(2048)
    for step in range(300):
        push = torch.sign(angle + 0.2 * turn + 0.05 * speed + 0.02 * place)
        turn = turn + 0.02 * (15 * angle - 2.5 * push + 0.5 * speed)
        angle, speed = angle + 0.02 * turn, speed + 0.02 * push
        place = place + 0.02 * speed
        upright = upright * (angle.abs() < 0.21)
        returns = returns + 0.99**step * upright
    return states, returns


def raw(columns: object, numbers: object) -> Samples:
    """Return columns and targets of any unit, as they are."""
    inputs, targets = torch.as_tensor(columns), torch.as_tensor(numbers)
    return inputs.float(), targets.float() if targets.is_floating_point() else targets
