"""The forward with other inputs: what it leaves as it is, and where it gives no answer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Watch
from halfstep.doctor.record.influence import Influence
from halfstep.doctor.replay.influence import forwards


class Layered(nn.Module):
    """A recurrent layer that takes samples for positions, after a norm.

    Args:
        routed: Whether the path through the module depends on its input.
    """

    def __init__(self, *, routed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer, self.head = nn.BatchNorm1d(5), nn.LSTM(4, 8), nn.Linear(8, 3)
        self.routed = routed

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        features = self.layer(self.norm(signals))[0][:, -1]
        for _ in range(int(signals[2, 0, 0] > 0) if self.routed else 0):
            features = features.tanh()
        return self.head(features)


def trained(model: nn.Module) -> Watch:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    signals = torch.linspace(-1, 1, 120).view(6, 5, 4)
    with Watch() as watch:
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(signals), torch.arange(6) % 3).backward()
            optimizer.step()
    return watch


def test_the_program_is_as_before() -> None:
    model = Layered()
    watch = trained(model)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.get_rng_state()
    assert watch.close().of(Influence).mixing is not None
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not watch.troubles


def test_operators_that_depend_on_the_input_give_no_answer() -> None:
    assert trained(Layered(routed=True)).close().of(Influence).mixing is None


def test_a_forward_that_takes_too_long_gives_no_answer(monkeypatch) -> None:
    monkeypatch.setattr(forwards, "SECONDS", -1.0)
    found = trained(Layered()).close().of(Influence)
    assert (found.mixing, found.note) == (None, "the forward takes too long")
