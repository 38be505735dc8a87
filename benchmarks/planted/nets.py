"""Five families of small networks with a place for a module that may be faulty: `gate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from planted.faults import Healthy, positional

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 4


class Mlp(nn.Module):
    """Three linear layers, (N, 12)."""

    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 32), nn.Linear(32, 32)
        self.gate = gate(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = torch.relu(self.first(values))
        return self.head(self.gate(torch.relu(self.second(hidden))))


class Cnn(nn.Module):
    """Two convolutions with BatchNorm, (N, 3, 8, 8)."""

    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16)
        self.gate = gate(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        hidden = torch.relu(self.norm2(self.conv2(hidden)))
        return self.head(self.gate(hidden.mean((2, 3))))


class Vit(nn.Module):
    """One transformer block over eight tokens, (N, 8, 6)."""

    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.gate = gate(16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)
        self.register_buffer("positions", positional(8, 16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.block(self.embed(tokens) + self.positions)
        return self.head(self.norm(self.gate(hidden)).mean(1))


class Gru(nn.Module):
    """A GRU over eight steps, (N, 8, 6)."""

    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 16, batch_first=True)
        self.gate = gate(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.gate(self.gru(sequence)[0][:, -1]))


class Gnn(nn.Module):
    """Two rounds of messages over a fixed ring of eight nodes, (N, 8, 6)."""

    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.message = nn.Linear(6, 16), nn.Linear(16, 16)
        self.gate = gate(16)
        self.head = nn.Linear(16, CLASSES)
        ring = torch.eye(8).roll(1, 0) + torch.eye(8).roll(-1, 0)
        self.register_buffer("adjacency", ring / 2)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = torch.relu(self.embed(nodes))
        for _ in range(2):
            hidden = hidden + torch.relu(self.message(self.adjacency @ hidden))
        return self.head(self.gate(hidden).mean(1))


SHAPES: dict[type[nn.Module], tuple[int, ...]] = {
    Mlp: (12,),
    Cnn: (3, 8, 8),
    Vit: (8, 6),
    Gru: (8, 6),
    Gnn: (8, 6),
}


def outside(family: type[nn.Module], fault: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return a family whose own forward has the fault, in no module inside."""

    class Outside(family):  # type: ignore[misc,valid-type]  # a class that is computed
        def __init__(self, gate: type[nn.Module]) -> None:
            super().__init__(gate)
            module = self._modules.pop("gate")
            for name, value in [*module.named_children(), *vars(module).items()]:
                if not name.startswith("_") and name != "training":
                    setattr(self, name, value)

        def gate(self, values: torch.Tensor) -> torch.Tensor:
            return fault.forward(self, values)

    return Outside


def planted(
    family: type[nn.Module],
    gate: type[nn.Module] = Healthy,
    *,
    seed: int = 0,
    in_a_module: bool = True,
) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return a network and eight batches of 16 samples that it can learn from."""
    torch.manual_seed(seed)
    model = (family if in_a_module else outside(family, gate))(gate)
    shape = SHAPES[family]
    prototypes = torch.randn(CLASSES, *shape)
    batches = []
    for _ in range(8):
        labels = torch.randint(0, CLASSES, (16,))
        batches.append((prototypes[labels] + torch.randn(16, *shape), labels))
    return model, batches


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the cross-entropy of a batch."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs).float(), labels)
