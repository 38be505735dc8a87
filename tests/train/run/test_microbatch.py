import sys
import warnings

import pytest
import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.train.build import models
from halfstep.train.build.classification import Classification
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches, MicrobatchWarning
from halfstep.train.run.progress import Progress
from halfstep.train.store import checkpoint

LOSS = "Tried to allocate 2.00 GiB"
TASK = Classification(None, nn.functional.cross_entropy, torch.device("cpu"))


class Hungry(nn.Module):
    """A classifier that takes so many images at a time and no more.

    Args:
        most: How many.
        where: Whether memory runs out in the forward or in the backward pass.
    """

    def __init__(self, most, where="forward", norm=False):
        super().__init__()
        self.most, self.where = most, where
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
        self.norm = nn.BatchNorm1d(3) if norm else nn.Identity()

    def forward(self, images):
        if self.training and len(images) > self.most and self.where == "forward":
            raise torch.OutOfMemoryError(LOSS)
        logits = self.norm(self.body(images))
        if len(images) > self.most and self.where == "backward":
            logits.register_hook(self._fail)
        return logits

    def _fail(self, grad):
        raise torch.OutOfMemoryError(LOSS)


def hungry(num_classes, in_chans, **args):
    """Make one as a config does, for images of 8x8."""
    model = Hungry(**args)
    model.body[1] = nn.Linear(64 * in_chans, 8)
    model.body[3] = nn.Linear(8, num_classes)
    return model


def batches(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 1, 4, 4, generator=generator),
            torch.randint(3, (size,), generator=generator),
        )
        for size in sizes
    ]


def gradients(config, most, sizes, where="forward", recipe="fp32"):
    """Return the true gradients of a window, and losses and logits of its micro-batches."""
    torch.manual_seed(0)
    model, progress, seen = Hungry(most, where), Progress(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    with Engine(model, optimizer, recipe=recipe, accumulate=len(sizes)) as engine:
        micro = MicroBatches(engine, config, progress, TASK)
        for number, (images, labels) in enumerate(batches(*sizes), start=1):
            seen.append(micro.add(images, labels))
            result = engine.step(close=number == len(sizes))
        assert result.stepped
        # What SGD keeps after one step is the gradient that it was given.
        kept = [optimizer.state[param]["momentum_buffer"] for param in model.parameters()]
    return kept, seen, progress.pieces


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("sizes", [(8,), (7,), (4, 4), (4, 7), (4, 4, 7), (7, 4, 2)])
@pytest.mark.parametrize("recipe", ["fp32", "fp16"])
def test_split_batch_gives_the_gradient_of_the_whole_one(tiny, sizes, where, recipe):
    config = tiny("auto_microbatch=true")
    wanted, whole, pieces = gradients(config, 8, sizes, where, recipe)
    assert pieces == 1
    with pytest.warns(MicrobatchWarning, match="continuing with") as caught:
        found, parts, pieces = gradients(config, 2, sizes, where, recipe)
    assert -(-max(sizes) // pieces) == 2
    assert "BatchNorm" not in str(caught[0].message)
    tolerance = {"fp32": 1e-6, "fp16": 2e-3}[recipe]
    for one, two in zip(wanted, found, strict=True):
        assert torch.allclose(one, two, atol=tolerance)
    for one, two in zip(whole, parts, strict=True):
        assert torch.allclose(one[0], two[0], atol=tolerance)
        assert torch.allclose(one[1].float(), two[1].float(), atol=tolerance)


def test_split_batch_of_a_model_with_batch_statistics_is_warned_of(tiny):
    config = tiny("auto_microbatch=true")
    model = Hungry(4, norm=True)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1)) as engine:
        micro = MicroBatches(engine, config, Progress(), TASK)
        with pytest.warns(MicrobatchWarning, match=r"BatchNorm then normalizes each of these"):
            micro.add(*batches(8)[0])


def test_other_errors_are_let_through(tiny):
    model = Hungry(8)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1)) as engine:
        micro = MicroBatches(engine, tiny("auto_microbatch=true"), Progress(), TASK)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            micro.add(torch.ones(2, 1, 5, 5), torch.zeros(2, dtype=torch.int64))


def hungry_run(tiny, run, *options, most=64, recipe="fp32"):
    name = f"import:{__name__}:hungry"
    model = f"model={{name: '{name}', args: {{most: {most}}}}}"
    config = tiny(model, "epochs=1", "batch_size=128", *options, recipe=recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MicrobatchWarning)
        train(config, run, quiet=True)
    return checkpoint.load(checkpoint.path(run, "last"))


@pytest.fixture
def importable(monkeypatch, request):
    monkeypatch.setitem(sys.modules, __name__, request.module)
    monkeypatch.setattr(models, "_try_on", lambda *_: None)


def test_run_goes_on_in_pieces_and_learns_the_same(tiny, tmp_path, importable):
    whole = hungry_run(tiny, tmp_path / "whole", most=1000)
    split = hungry_run(tiny, tmp_path / "split", "auto_microbatch=true", most=50)
    assert split.progress["pieces"] == 4
    for name in whole.model:
        assert torch.allclose(whole.model[name], split.model[name], atol=1e-6)


def test_out_of_memory_says_what_to_try(tiny, tmp_path, importable):
    with pytest.raises(UserError) as caught:
        hungry_run(tiny, tmp_path)
    assert str(caught.value) == (
        "there is not enough memory for batches of 128 images (Tried to allocate 2.00 GiB); try "
        "auto_microbatch=true, batch_size=64 accumulate=2, recipe=fp16 or recipe=bf16, or a "
        "smaller data.resolution"
    )
    with pytest.raises(UserError, match="there is not enough memory for a single image; write"):
        hungry_run(tiny, tmp_path / "other", "auto_microbatch=true", most=0)
