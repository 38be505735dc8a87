"""All weights of a network begin with one constant."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "UNITS_IDENTICAL"


def net(initialize=lambda model: None) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        initialize(model)
    return model


def train(model: nn.Module, *, steps: int = 8) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def constant(value: float):
    def initialize(model) -> None:
        for each in model:
            if isinstance(each, nn.Linear):
                nn.init.constant_(each.weight, value)
                nn.init.zeros_(each.bias)

    return initialize


class Adapted(nn.Module):
    """A frozen layer with a low-rank update."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.zeros(4, 6) if both else torch.randn(4, 6))
        self.up = nn.Parameter(torch.zeros(6, 4))
        self.head = nn.Linear(6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        update = images @ self.down.T @ self.up.T
        return self.head(self.base(images) + update)


class Queries(nn.Module):
    """Vectors that attend to the inputs."""

    def __init__(self, *, random: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(1, 4, 6) if random else torch.zeros(1, 4, 6))
        self.lift = nn.Linear(6, 6)
        self.head = nn.Linear(24, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = self.lift(images).relu()[:, :, None] * torch.eye(6)
        weights = (self.queries @ parts.transpose(1, 2)).softmax(-1)
        return self.head((weights @ parts).flatten(1))


def broken() -> None:
    train(net(constant(0.1)))


def mended() -> None:
    train(net())


def broken_by_two_factors_of_zero() -> None:
    train(Adapted(both=True))


def broken_by_two_factors_of_zero_that_are_all_that_is_trained() -> None:
    model = Adapted(both=True)
    model.head.requires_grad_(requires_grad=False)
    train(model, steps=10)


def broken_by_zeros_everywhere() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    for each in model.parameters():
        nn.init.zeros_(each)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in batches(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels.clamp(max=1)).backward()
        optimizer.step()


def broken_by_copied_rows() -> None:
    def initialize(model) -> None:
        model[0].weight.copy_(model[0].weight[:1].expand(16, 6))
        model[0].bias.zero_()
        model[2].weight.fill_(0.2)

    train(net(initialize))


class Experts(nn.Module):
    """Four experts, of which `copied` ones begin as one, and a gate that begins at zero."""

    def __init__(self, *, copied: bool, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        inner = torch.randn(1, 6, 3) if copied else torch.randn(4, 6, 3)
        self.inner = nn.Parameter(inner.expand(4, 6, 3).clone())
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Linear(6, 4)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        each = self.dropout(torch.einsum("bi,eio->beo", images, self.inner).tanh())
        return torch.einsum("be,beo->bo", self.gate(images).softmax(1), each)


def train_adaptively(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for images, labels in batches(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken_until_rounding_tells_experts_apart() -> None:
    train_adaptively(Experts(copied=True))


def healthy_random_experts() -> None:
    train_adaptively(Experts(copied=False))


def healthy_copies_that_dropout_tells_apart() -> None:
    train_adaptively(Experts(copied=True, dropout=0.3))


def healthy_low_rank_update() -> None:
    train(Adapted(both=False))


def healthy_head_of_zeros() -> None:
    train(net(lambda model: nn.init.zeros_(model[2].weight)))


def healthy_hidden_layer_of_zeros_before_a_random_one() -> None:
    train(net(lambda model: nn.init.zeros_(model[0].weight)))


def healthy_random_queries() -> None:
    train(Queries(random=True))


def healthy_classifier_of_one_layer() -> None:
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    train(model)


def healthy_frozen_averages() -> None:
    """Equal rows that are not trained."""
    model = net(lambda model: model[0].weight.fill_(0.2))
    model[0].requires_grad_(requires_grad=False)
    train(model)


def healthy_embedding_of_zeros() -> None:
    table = nn.Embedding(32, 6)
    nn.init.zeros_(table.weight)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        words = torch.randint(8, (8, 4))
        nn.functional.cross_entropy(model(words), words[:, 0] % 3).backward()
        optimizer.step()
