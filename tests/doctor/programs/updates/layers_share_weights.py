"""A list with one layer is multiplied by the number of layers."""

import itertools

import torch
from torch import nn

from doctor.loops import batches

CODE = "LAYERS_SHARE_WEIGHTS"
WIDTH, DEPTH = 8, 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, features):
        return features + self.linear(features).relu()


class Stack(nn.Module):
    """A stack of blocks, which `make` returns as a module list."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = blocks

    def forward(self, images):
        features = self.lift(images)
        for block in self.blocks:
            features = block(features)
        return self.head(features)


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, WIDTH),
            *[nn.Linear(WIDTH, WIDTH), nn.ReLU()] * DEPTH,
            nn.Linear(WIDTH, 3),
        )

    def forward(self, images):
        return self.net(images)


class Looped(nn.Module):
    """One layer, which is called in a loop on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.layer = nn.Linear(6, WIDTH), Cell(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, images):
        features = self.lift(images)
        for _ in range(DEPTH):
            features = self.layer(features)
        return self.head(features)


class Cell(Block):
    """A block that no list in this file repeats."""


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        self.layers[2].weight = self.layers[0].weight

    def forward(self, images):
        return self.layers(images)


def train(model, use=None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(10):
        optimizer.zero_grad()
        outputs = use(model, images) if use else model(images)
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def broken() -> None:
    torch.manual_seed(0)
    train(Stack(nn.ModuleList([Block(WIDTH)] * DEPTH)))


def mended() -> None:
    torch.manual_seed(0)
    train(Stack(nn.ModuleList([Block(WIDTH) for _ in range(DEPTH)])))


def broken_in_a_model_that_is_used_by_a_method() -> None:
    torch.manual_seed(0)
    train(Stack(nn.ModuleList([Block(WIDTH)] * DEPTH)), use=Stack.forward)


def healthy_model_that_is_used_by_a_method() -> None:
    torch.manual_seed(0)
    train(Stack(nn.ModuleList([Block(WIDTH) for _ in range(DEPTH)])), use=Stack.forward)


def broken_in_pairs() -> None:
    torch.manual_seed(0)
    train(Repeated())


class Parts(nn.Module):
    """A head for each part of the inputs, which are summed."""

    def __init__(self, heads: nn.ModuleDict) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, images):
        parts = images.chunk(len(self.heads), 1)
        return sum(head(part) for head, part in zip(self.heads.values(), parts, strict=True))


class Head(nn.Linear):
    """A layer that only the keys of a dict repeat."""


class Owned(nn.Linear):
    """A layer that no expression in this file repeats."""


def broken_under_the_keys_of_a_dict() -> None:
    torch.manual_seed(0)
    train(Parts(nn.ModuleDict(dict.fromkeys(["left", "right"], Head(3, 3)))))


def broken_by_an_iterator() -> None:
    torch.manual_seed(0)
    train(Stack(nn.ModuleList(itertools.repeat(Block(WIDTH), DEPTH))))


def healthy_layers_under_the_keys_of_a_dict() -> None:
    torch.manual_seed(0)
    train(Parts(nn.ModuleDict({name: Head(3, 3) for name in ("left", "right")})))


def healthy_layer_that_two_keys_share() -> None:
    torch.manual_seed(0)
    shared = Owned(3, 3)
    train(Parts(nn.ModuleDict({"left": shared, "right": shared})))


def healthy_layer_that_is_called_in_a_loop() -> None:
    torch.manual_seed(0)
    train(Looped())


def healthy_layer_that_a_name_shares() -> None:
    torch.manual_seed(0)
    shared = Cell(WIDTH)
    train(Stack(nn.ModuleList([shared, shared, Cell(WIDTH)])))


def healthy_weights_that_are_tied() -> None:
    torch.manual_seed(0)
    train(Tied())


def healthy_layers_without_weights() -> None:
    torch.manual_seed(0)
    train(nn.Sequential(nn.Linear(6, WIDTH), *[nn.ReLU()] * 2, nn.Linear(WIDTH, 3)))
