import pytest
import torch

from halfstep.engine.recompute import Recomputed
from halfstep.errors import UserError
from halfstep.train.build.setup import set_up

CPU = torch.device("cpu")


def weights(config):
    with set_up(config, CPU).engine as engine:
        return engine.model.state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_initial_weights_and_order_are_the_seeds_alone(tiny):
    assert same(weights(tiny()), weights(tiny(recipe="bf16")))
    assert not same(weights(tiny()), weights(tiny(seed=1)))
    orders = [
        torch.cat([labels for _, labels in set_up(tiny(recipe=name), CPU).task.data.train.epoch()])
        for name in ("fp32", "fp16")
    ]
    assert torch.equal(*orders)


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (4, 4), (6, 2)])
def test_steps_count_windows_of_every_epoch(tiny, accumulate, steps):
    # 1,347 training images make 6 batches of 256, and an epoch closes its last window early.
    setup = set_up(tiny(f"accumulate={accumulate}", "clip_norm=2"), CPU)
    assert setup.steps == steps
    assert setup.engine.accumulate == accumulate


def test_weights_that_do_not_fit_are_refused(tiny):
    with pytest.raises(UserError, match="the weights do not fit model 'timm:resnet18'"):
        set_up(tiny(), CPU, weights={"fc.weight": torch.ones(1)})


def test_optimizer_is_what_the_config_says(tiny):
    engine = set_up(tiny("optimizer={name: adamw, lr: 0.5}"), CPU).engine
    assert type(engine.optimizer) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("options", "lr"),
    [
        (["lr_scaling={rule: linear, base_batch: 64}"], 0.05 * 8),
        (["lr_scaling={rule: sqrt, base_batch: 128}"], 0.05 * 2),
        (["lr_scaling={}"], 0.05 * 2),
        ([], 0.05),
    ],
)
def test_learning_rate_follows_the_images_in_a_step(tiny, options, lr):
    setup = set_up(tiny("accumulate=2", "schedule.name=constant", *options), CPU)
    assert setup.engine.optimizer.param_groups[0]["lr"] == pytest.approx(lr)


@pytest.mark.parametrize(("most", "steps"), [(5, 5), (50, 12)])
def test_max_steps_caps_what_the_schedule_counts_on(tiny, most, steps):
    assert set_up(tiny(f"max_steps={most}"), CPU).steps == steps


def test_given_weights_take_the_place_of_pretrained_ones(tiny, tmp_path):
    setup = set_up(tiny(), CPU)
    torch.save(setup.engine.model.state_dict(), tmp_path / "weights.pth")
    config = tiny(f"model.weights={tmp_path / 'weights.pth'}")
    (tmp_path / "weights.pth").unlink()
    with pytest.raises(UserError, match=r"weights\.pth"):
        set_up(config, CPU)
    set_up(config, CPU, weights=setup.engine.model.state_dict())


def test_model_is_compiled_in_place(tiny, monkeypatch):
    compiled = []

    def note(model):
        compiled.append(model)

    monkeypatch.setattr(torch.nn.Module, "compile", note)
    setup = set_up(tiny("model.compile=true", recipe="o2"), CPU)
    assert compiled == [setup.engine.model]


@pytest.mark.parametrize("named", ["model", "distributed"])
def test_activations_are_computed_again_if_a_config_says_so(tiny, named):
    # The former name is that of releases up to 0.2.0.
    config = tiny(f"{named}.checkpoint_activations=true")
    assert config.model.checkpoint_activations
    with set_up(config, CPU).engine as engine:
        found = {type(m).__name__ for m in engine.bare_model.modules() if isinstance(m, Recomputed)}
    assert found == {"RecomputedBasicBlock"}
    with pytest.raises(UserError, match=r"write model\.checkpoint_activations=false"):
        set_up(
            tiny("model={name: alexnet, checkpoint_activations: true}", "data.resolution=64"), CPU
        )
