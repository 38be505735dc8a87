"""Steps are repeated although wrappers, data preparation and averages make that hard."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from doctor.loops import batches, classifier, half_autocast
from halfstep.doctor import Evidence, Watch, diagnose


class Insisting(nn.Module):
    """A wrapper whose results refuse any backward but its own, as Fabric's do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.allowed = False

    def forward(self, images):
        outputs = self.model(images)
        outputs.register_hook(self._check)
        return outputs

    def _check(self, gradient):
        if not self.allowed:
            raise RuntimeError("call wrapper.backward(loss)")

    def backward(self, loss) -> None:
        self.allowed = True
        loss.backward()
        self.allowed = False


class Preparation(nn.Module):
    """An image's transform."""

    def forward(self, image):
        return (image - 0.5) / 0.25


def is_repeated(evidence: Evidence) -> bool:
    notes = [each.note for each in evidence.replays if each.note]
    return not notes and bool(evidence.precision.agreements)


def test_a_wrapper_that_insists_on_its_own_backward() -> None:
    with Watch() as watch:
        model = Insisting(classifier())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for images, labels in batches(3):
            optimizer.zero_grad()
            with half_autocast():
                loss = functional.cross_entropy(model(images), labels)
            model.backward(loss)
            optimizer.step()
    assert is_repeated(watch.close())


def test_more_transforms_of_single_images_than_models_are_kept() -> None:
    with Watch() as watch:
        model, prepare = classifier(), Preparation()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for images, labels in batches(3):
            prepared = torch.stack([prepare(image) for image in images.repeat(3, 1)])
            optimizer.zero_grad()
            with half_autocast():
                loss = functional.cross_entropy(model(prepared), labels.repeat(3))
            loss.backward()
            optimizer.step()
    assert is_repeated(watch.close())


def test_a_loss_of_a_tensor_that_an_early_iteration_has_made() -> None:
    with Watch() as watch:
        model = classifier()
        anchor = model[0].weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number, (images, labels) in enumerate(batches(4)):
            optimizer.zero_grad()
            with half_autocast():
                outputs = model(images)
                loss = functional.cross_entropy(outputs, labels)
            if number == 0:
                anchor.add_(outputs.detach().float().mean())
            (loss + (model[0].weight - anchor).square().mean()).backward()
            optimizer.step()
    assert is_repeated(watch.close())


@pytest.mark.parametrize("turned", ["T", "mT", "H", "mH"])
def test_a_loss_of_outputs_that_an_attribute_transposes(turned: str) -> None:
    with Watch() as watch:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for images, _ in batches(3):
            optimizer.zero_grad()
            with half_autocast():
                outputs = model(images)
                similarities = outputs @ getattr(outputs, turned)
                loss = functional.cross_entropy(similarities, torch.arange(len(images)))
            loss.backward()
            optimizer.step()
    assert is_repeated(watch.close())


@pytest.mark.parametrize("code", ["NOT_FINITE", "SCALE_COLLAPSED"])
def test_a_loss_that_is_nan_is_found_where_no_step_can_be_repeated(code: str) -> None:
    with Watch() as watch:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", enabled=code == "SCALE_COLLAPSED")
        for images, _ in batches(8):
            optimizer.zero_grad()
            outputs = model(images).abs() + 2
            scaler.scale(torch.vmap(torch.acos)(outputs).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    diagnosis = diagnose(watch.close())
    assert [verdict.code for verdict in diagnosis.verdicts] == [code]
    assert any("torch.vmap" in note for note in diagnosis.notes)
    assert "named above" not in "".join(diagnosis.verdicts[0].finding.change)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_hidden_state_that_every_iteration_detaches_and_carries_on(count: int) -> None:
    with Watch() as watch:
        torch.manual_seed(0)
        cell, head = nn.GRUCell(6, 16), nn.Linear(16, 3)
        optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
        state = torch.zeros(8, 16)
        for images, labels in batches(count):
            optimizer.zero_grad()
            with half_autocast():
                state = cell(images, state.detach())
                loss = functional.cross_entropy(head(state), labels)
            loss.backward()
            optimizer.step()
    assert is_repeated(watch.close())


def test_packed_sequences_whose_state_is_carried_on() -> None:
    with Watch() as watch:
        torch.manual_seed(0)
        recurrent, head = nn.LSTM(6, 16, batch_first=True), nn.Linear(16, 3)
        optimizer = torch.optim.SGD([*recurrent.parameters(), *head.parameters()], lr=0.05)
        state = None
        for images, labels in batches(4):
            packed = pack_padded_sequence(
                images[:, None].repeat(1, 5, 1),
                torch.tensor([5, 3, 4, 2, 5, 1, 2, 3]),
                batch_first=True,
                enforce_sorted=False,
            )
            optimizer.zero_grad()
            with half_autocast():
                outputs, state = recurrent(packed, state)
                padded, lengths = pad_packed_sequence(outputs, batch_first=True)
                loss = functional.cross_entropy(head(padded[range(8), lengths - 1]), labels)
            state = tuple(each.detach() for each in state)
            loss.backward()
            optimizer.step()
    assert is_repeated(watch.close())
    assert not watch.troubles


def test_an_error_of_doctors_own_is_said() -> None:
    watch = Watch()
    assert not watch.failure
    with watch, watch.bus.guard.own():
        raise KeyError("lost")
    assert watch.failure == (
        "doctor itself failed 1 time, so its diagnosis may be incomplete; the first error: "
        "KeyError: 'lost'"
    )
