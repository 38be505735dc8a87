"""Samples of the third set of tasks: made here, or of the sets that scikit-learn brings."""

from __future__ import annotations

import math

import torch
from sklearn import datasets
from torch.nn import functional

Samples = tuple[torch.Tensor, torch.Tensor]
LENGTH, PLACES, TAGS, LETTERS, SAID, NODES, COLUMNS = 24, 48, 6, 8, 5, 14, 6


def pixels() -> Samples:
    """Return digits as they are, (N, 64) of 0 to 16, and their classes."""
    digits = datasets.load_digits()
    return torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)


def discs() -> Samples:
    """Return noisy images (256, 1, 16, 16) of a few small discs, and where the discs are."""
    chance = torch.Generator().manual_seed(31)
    centre = torch.rand(256, 3, 2, 1, 1, generator=chance) * 16
    radius = torch.rand(256, 3, 1, 1, generator=chance) * 1.5 + 1
    place = torch.arange(16.0)
    down, across = place[:, None] - centre[:, :, 0], place - centre[:, :, 1]
    covered = ((down.square() + across.square()) < radius.square()).any(1, keepdim=True).float()
    light = torch.rand(256, 1, 1, 1, generator=chance)
    noise = 0.4 * torch.randn(covered.shape, generator=chance)
    return covered + light + noise, covered


def latent() -> Samples:
    """Return digits of 0 to 1 and eight columns of standard noise after them, and the digits."""
    shown = pixels()[0] / 16
    chance = torch.Generator().manual_seed(32)
    return torch.cat([shown, torch.randn(len(shown), 8, generator=chance)], 1), shown


def photograph() -> Samples:
    """Return places (N, 2) of 0 to 1 in a photograph, and its colours there, of 0 to 1."""
    picture = torch.tensor(datasets.load_sample_images().images[1]).permute(2, 0, 1).float() / 255
    small = functional.avg_pool2d(picture, 8)
    rows, columns = (torch.linspace(0, 1, size) for size in small.shape[1:])
    places = torch.cartesian_prod(rows, columns)
    return places, small.flatten(1).T.contiguous()


def triplets() -> Samples:
    """Return digits, each with one of its class and one of another, (N, 3, 64); and zeros."""
    shown, classes = pixels()
    chance = torch.Generator().manual_seed(33)
    same = (classes[:, None] == classes).float().fill_diagonal_(0)
    alike = torch.multinomial(same, 1, generator=chance)[:, 0]
    other = torch.multinomial((classes[:, None] != classes).float(), 1, generator=chance)[:, 0]
    return torch.stack([shown, shown[alike], shown[other]], 1) / 8 - 1, torch.zeros(len(shown))


def letters(text: str) -> tuple[int, Samples]:
    """Return how many letters a text has, and pieces of it, each with what follows."""
    return _pieces(list(" ".join(text.split())), 5)


def words(text: str) -> tuple[int, Samples]:
    """Return how many words a text has, and pieces of it, each with what follows."""
    return _pieces(text.lower().split(), 1)


def _pieces(units: list[str], stride: int) -> tuple[int, Samples]:
    known = sorted(set(units))
    coded = torch.tensor([known.index(each) for each in units])
    before, after = (part.unfold(0, LENGTH, stride) for part in (coded[:-1], coded[1:]))
    return len(known), (before.contiguous(), after.contiguous())


def spoken() -> Samples:
    """Return noisy tracks (512, LENGTH, LETTERS) of letters of any duration, and the letters.

    Letters are 1 to LETTERS, as 0 is the blank of CTC.
    """
    chance = torch.Generator().manual_seed(34)
    said = torch.randint(0, LETTERS, (512, SAID), generator=chance)
    cuts = torch.rand(512, LENGTH, generator=chance).argsort(1) < SAID - 1
    cuts[:, 0] = False
    heard = said.gather(1, cuts.long().cumsum(1).clamp(max=SAID - 1))
    tracks = functional.one_hot(heard, LETTERS).float()
    return 2 * tracks + 0.6 * torch.randn(tracks.shape, generator=chance), said + 1


def tagged() -> Samples:
    """Return words that hidden tags say, with those tags, (512, 2, PLACES); and zeros.

    The tags are a Markov chain; a word of 40 tells little of its tag.
    """
    chance = torch.Generator().manual_seed(35)
    follows = (2 * torch.randn(TAGS, TAGS, generator=chance)).softmax(1)
    says = (1.2 * torch.randn(TAGS, 40, generator=chance)).softmax(1)
    tag, tags = torch.randint(0, TAGS, (512,), generator=chance), []
    for _ in range(PLACES):
        tag = torch.multinomial(follows[tag], 1, generator=chance)[:, 0]
        tags.append(tag)
    chain = torch.stack(tags, 1)
    said = torch.multinomial(says[chain.flatten()], 1, generator=chance).view_as(chain)
    return torch.stack([said, chain], 1), torch.zeros(512)


def bursts() -> Samples:
    """Return noisy loads (1024, 1, 32) of growing variance, and the load that follows."""
    chance = torch.Generator().manual_seed(36)
    phase = torch.rand(1024, 1, generator=chance) * 2 * math.pi
    level = 1.5 + torch.sin(torch.arange(33) * 2 * math.pi / 12 + phase)
    series = level * (1 + 0.3 * torch.randn(level.shape, generator=chance).exp())
    return series[:, None, :-1], series[:, -1]


def hunters() -> Samples:
    """Return numbers of prey and hunters (512, 2), and their numbers one unit of time later."""
    begun = torch.rand(512, 2, generator=torch.Generator().manual_seed(37)) * 2 + 0.5
    state = begun
    for _ in range(200):
        prey, hunter = state.unbind(1)
        change = torch.stack([1.5 * prey - prey * hunter, prey * hunter - 1.5 * hunter], 1)
        state = state + 0.005 * change
    return begun, state


def frauds() -> Samples:
    """Return payments (4096, 10), and which 2 % of them are frauds, as 0.0 and 1.0."""
    chance = torch.Generator().manual_seed(38)
    columns = torch.randn(4096, 10, generator=chance)
    columns[:, 0] = torch.log1p(torch.exp(4 + 1.5 * columns[:, 0]))  # an amount
    score = columns[:, 0] / 2 + columns[:, 1] * columns[:, 2] + columns[:, 3].square()
    score = score + 0.5 * torch.randn(4096, generator=chance)
    return columns, (score > score.quantile(0.98)).float()


def cars() -> Samples:
    """Return cars by age, 1000 km, power, doors and brand, scaled, and their prices in euros."""
    chance = torch.Generator().manual_seed(39)
    uniform = torch.rand(2048, 5, generator=chance)
    age, brand = 15 * uniform[:, 0], (uniform[:, 4] * 4).floor()
    power = 60 + 200 * uniform[:, 2].square()
    price = 210 * power * (0.7 + 0.2 * brand) * torch.exp(-0.13 * age - 0.8 * uniform[:, 1])
    price = price * torch.exp(0.1 * torch.randn(2048, generator=chance))
    return (uniform - 0.5) * 12**0.5, price


def molecules() -> Samples:
    """Return bonds and features (1024, NODES, NODES + COLUMNS), and the kind of the first node.

    The first node has three neighbours at least; its kind is that of most of their features.
    """
    chance = torch.Generator().manual_seed(40)
    bonds = (torch.rand(1024, NODES, NODES, generator=chance) < 0.15).float().triu(1)
    bonds[:, 0, 1:4] = 1
    bonds = bonds + bonds.transpose(1, 2)
    features = torch.randn(1024, NODES, COLUMNS, generator=chance)
    kinds = (bonds[:, 0, :, None] * features).sum(1)[:, :4].argmax(1)
    return torch.cat([bonds, features], 2), kinds


def crowds() -> Samples:
    """Return 200 particles each, (512, 200, 3) of a place and a mass, and the moment of inertia."""
    chance = torch.Generator().manual_seed(41)
    spread = 0.5 + torch.rand(512, 1, 1, generator=chance)
    places = spread * torch.randn(512, 200, 2, generator=chance)
    mass = torch.rand(512, 200, 1, generator=chance)
    return torch.cat([places, mass], 2), (mass * places.square()).sum((1, 2)) / 10


def moons() -> Samples:
    """Return two sharp moons, (2048, 2), and zeros."""
    places, _ = datasets.make_moons(2048, noise=0.04, random_state=42)
    return torch.tensor(places, dtype=torch.float32), torch.zeros(2048)


def among_noise() -> Samples:
    """Return scaled cancer samples, each before eight of noise, (569, 9, 30); the true one is 0."""
    columns = torch.tensor(datasets.load_breast_cancer().data, dtype=torch.float32)
    columns = (columns - columns.mean(0)) / columns.std(0)
    chance = torch.Generator().manual_seed(43)
    noise = torch.randn(len(columns), 8, 30, generator=chance)
    return torch.cat([columns[:, None], noise], 1), torch.zeros(len(columns), dtype=torch.int64)


def poisson() -> Samples:
    """Return points (1024, 1) of 0 to 1, and the source there of a Poisson equation."""
    points = torch.rand(1024, 1, generator=torch.Generator().manual_seed(44))
    turns = math.pi * points[:, 0]
    return points, -(turns.sin() + 4 * (2 * turns).sin())


def queries() -> Samples:
    """Return 20 documents a query, (512, 20, 8) of raw counts, from the best one to the worst."""
    chance = torch.Generator().manual_seed(45)
    hidden = torch.randn(512, 20, 8, generator=chance)
    scale = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7])
    merit = hidden[..., :3].sum(-1) + 0.5 * hidden[..., 5] * hidden[..., 6]
    merit = merit + 0.5 * torch.randn(512, 20, generator=chance)
    best = merit.argsort(1, descending=True)[..., None].expand(-1, -1, 8)
    return torch.exp(scale + hidden).gather(1, best), torch.zeros(512)
