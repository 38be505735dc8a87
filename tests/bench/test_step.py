import pytest
import torch

from halfstep.bench import step
from halfstep.bench.marks import PARTS
from halfstep.errors import UserError
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train
from halfstep.train.store import rotation


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([], 12),
        (["accumulate=4", "clip_norm=1", "recipe=fp16"], 4),
        (["recipe=o2", "on_nonfinite=skip"], 12),
    ],
    ids=["plain", "accumulated", "o2"],
)
def test_a_step_that_is_taken_apart_is_the_trainers_own(tiny, tmp_path, options, steps):
    # Two epochs of 6 batches, the last one of each smaller.
    config = tiny(*options)
    train(config, tmp_path / "run", quiet=True)
    setup = set_up(config, torch.device("cpu"))
    with setup.engine as engine:
        taken = step.take_apart(setup, config, steps=steps - 1, warmup=1)
        weights = engine.bare_model.state_dict()
    stored = rotation.newest_whole(tmp_path / "run")[1].model
    assert all(torch.equal(stored[name], weights[name]) for name in weights)
    assert len(taken) == steps - 1
    assert all(seconds[part] > 0 for seconds in taken for part in PARTS)


def test_it_goes_on_past_the_epochs_of_the_config(tiny_file, console):
    outcome = step.bench(
        str(tiny_file),
        options=["epochs=1", "max_steps=2"],
        device_name="cpu",
        recipes="fp32,fp16",
        steps=3,
        warmup=5,
        rounds=2,
        console=console,
    )
    steps = outcome.figures["steps"]
    assert {name: [len(each) for each in rounds] for name, rounds in steps.items()} == {
        "fp32": [3, 3],
        "fp16": [3, 3],
    }
    assert "round 2 of 2, fp16: " in console.file.getvalue()
    assert any("† fp16: " in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("options", "recipes", "said"),
    [
        (["recipe=fp16"], "fp32,bf16", "--options sets 'recipe'"),
        ([], "fp32,fp32", "names fp32 twice"),
        ([], "fp23", "no recipe is named 'fp23'"),
    ],
)
def test_recipes_that_cannot_be_rows_are_refused(tiny_file, console, options, recipes, said):
    with pytest.raises(UserError, match=said):
        step.bench(
            str(tiny_file),
            options=options,
            device_name="cpu",
            recipes=recipes,
            steps=1,
            warmup=0,
            rounds=1,
            console=console,
        )
