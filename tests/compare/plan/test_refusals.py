"""What a cell would fail at is refused before the first one starts, by what refuses there."""

import pytest

from halfstep.compare.plan.plan import plan
from halfstep.recipe import recipes

TINY = ["data.resolution=8", "model.args={channels: [8, 8, 8, 8]}"]
LAMB = "optimizer={name: lamb, lr: 0.1}"


@pytest.fixture
def planned(tmp_path):
    def make(names, *options, **given):
        out = tmp_path / "comparison"
        made = plan(
            "digits",
            recipes=names,
            seeds="2",
            device="cpu",
            options=[*TINY, *options],
            out=out,
            **given,
        )
        assert not out.exists()
        return made

    return make


def test_recipes_that_refuse_the_optimizer_are_named_with_the_reason_and_what_to_write(planned):
    with pytest.raises(ValueError, match=r"^bf16-sr: .* knows torch.optim.SGD") as refused:
        planned("fp32,bf16-sr,fp16,bf16-kahan", LAMB)
    assert "not Lamb; use one of them, or recipe='o2'" in str(refused.value)
    assert str(refused.value).endswith("; or leave bf16-sr,bf16-kahan out of --recipes")


def test_a_point_of_the_grid_at_which_a_recipe_refuses_is_named(planned):
    axes = ["optimizer={name: sgd, lr: 0.1},{name: lamb, lr: 0.1}"]
    with pytest.raises(ValueError, match=r"^bf16-sr optimizer=.name: lamb, lr: 0.1.: "):
        planned("fp32,bf16-sr", axes=axes)


def test_what_no_recipe_could_train_is_not_blamed_on_one(planned):
    with pytest.raises(ValueError, match=r"^optimizer.name is 'lamm'; allowed: ") as refused:
        planned("fp16,bf16-sr", "optimizer={name: lamm, lr: 0.1}")
    assert "--recipes" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "processes"), [(["batch_size=1348"], 1), (["batch_size=674"], 2)]
)
def test_a_batch_that_is_larger_than_the_training_set_is_refused(planned, options, processes):
    with pytest.raises(ValueError, match=r"^batch_size is .* the training set has 1347 images"):
        planned("fp32,bf16", *options, processes=processes)


def test_a_point_of_the_grid_with_more_micro_batches_than_an_epoch_has_is_refused(planned):
    with pytest.raises(ValueError, match=r"^accumulate is 99 and batch_size is 32, .* 42 batches"):
        planned("fp32,bf16", axes=["accumulate=1,99"])


def test_a_way_to_share_the_model_that_a_recipe_refuses_is_found_too(planned):
    with pytest.raises(
        ValueError, match=r"^bf16-true: .* write recipe=o2, or .* out of --recipes$"
    ):
        planned("fp32,bf16-true", "distributed.strategy=fsdp", processes=2)


def test_more_cells_than_any_comparison_has_are_refused_before_they_are_laid_out(planned):
    axes = [f"{key}={','.join(map(str, range(1, 80)))}" for key in ("log_every", "val_every")]
    with pytest.raises(ValueError, match=r"--seeds and --grid asks for 12482 runs; allowed: 10000"):
        planned("fp32", axes=axes)


def test_no_recipe_is_refused_that_trains(planned):
    names = list(recipes())
    assert len(planned(",".join(names)).grid.cells) == 2 * len(names)
