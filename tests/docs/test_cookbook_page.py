"""The programs of docs/cookbook.md train as plain PyTorch does without an engine."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
SECTION = re.compile(r"^## ([^\n]*)\n[^#]*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
PROGRAMS = dict(SECTION.findall(PAGE))
ENTROPY = nn.functional.cross_entropy


def clipped(data, model, optimizer, **_):
    norms = []
    for images, labels in data:
        optimizer.zero_grad()
        ENTROPY(model(images), labels).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    return {"norms": norms}


def accumulated(data, model, optimizer, **_):
    for window in (data[:4], data[4:]):
        images, labels = (torch.cat(each) for each in zip(*window, strict=True))
        optimizer.zero_grad()
        ENTROPY(model(images), labels).backward()
        optimizer.step()
    return {"steps": 2}


def several_losses(data, model, optimizer, **_):
    for images, labels, heights in data:
        optimizer.zero_grad()
        outputs = model(images)
        height = nn.functional.mse_loss(outputs[:, 4], heights)
        (ENTROPY(outputs[:, :4], labels) + 0.001 * height).backward()
        optimizer.step()
    return {}


def several_models(data, encoder, head, slow, fast, **_):
    for images, labels in data:
        slow.zero_grad()
        fast.zero_grad()
        ENTROPY(head(encoder(images).relu()), labels).backward()
        slow.step()
        fast.step()
    return {}


def penalised(data, model, optimizer, **_):
    for images, labels in data:
        optimizer.zero_grad()
        loss = ENTROPY(model(images.requires_grad_()), labels)
        (gradient,) = torch.autograd.grad(loss, images, create_graph=True)
        (loss + 10 * gradient.square().sum()).backward()
        optimizer.step()
    return {}


REFERENCES = {
    "Clip gradients": clipped,
    "Accumulate over several batches": accumulated,
    "Several losses": several_losses,
    "Several models and optimizers": several_models,
    "A gradient penalty": penalised,
}


def weights(names):
    models = [each for each in names.values() if isinstance(each, nn.Module)]
    return [param.detach().float() for model in models for param in model.parameters()]


def test_every_program_has_a_reference():
    assert list(PROGRAMS) == list(REFERENCES)


@pytest.mark.parametrize(("recipe", "tolerance"), [("fp32", 1e-6), ("fp16", 2e-3)])
@pytest.mark.parametrize("title", REFERENCES)
def test_it_trains_as_plain_pytorch_does(title, recipe, tolerance):
    names, plain = {}, {}
    exec(PROGRAMS[title].replace('"fp16"', f'"{recipe}"'), names)
    exec(PROGRAMS[title].partition("\nengine = ")[0], plain)
    before = [each.clone() for each in weights(plain)]
    expected = REFERENCES[title](**plain)
    torch.testing.assert_close(weights(names), weights(plain), rtol=0, atol=tolerance)
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(plain), strict=True))
    for name, value in expected.items():
        assert names[name] == pytest.approx(value, rel=max(tolerance, 1e-5))
    names["engine"].close()
