import pytest

from halfstep.errors import UserError
from halfstep.train.config.loop import LrScalingConfig


@pytest.mark.parametrize(
    ("rule", "images", "factor"),
    [("linear", 4096, 16.0), ("sqrt", 4096, 4.0), ("linear", 128, 0.5)],
)
def test_rate_scales_by_the_rule(rule, images, factor):
    assert LrScalingConfig(rule=rule).factor(images) == factor


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("early_stopping.metric=loss", "early_stopping.patience is missing"),
        ("early_stopping={patience: 0}", "patience is 0; allowed: greater than or equal to 1"),
        ("average.decay=1", "average.decay is 1; allowed: less than 1"),
        ("checkpoints.keep=0", "checkpoints.keep is 0; allowed: greater than"),
        ("on_nonfinite=ignore", "on_nonfinite is 'ignore'; allowed: 'stop', 'skip' or 'rollback'"),
        ("lr_scaling.rule=cubic", "lr_scaling.rule is 'cubic'; allowed: 'linear' or 'sqrt'"),
        ("tracking=[tensorbord]", "'tensorbord'; allowed: 'tensorboard', 'wandb', 'mlflow'"),
        ("max_steps=0", "max_steps is 0; allowed"),
        ("label_smoothing=1", "label_smoothing is 1; allowed: less than 1"),
        ("checkpoints.evry_steps=1", "did you mean 'checkpoints.every_steps'"),
        ("average.deccay=0.5", "did you mean 'average.decay'"),
    ],
)
def test_values_that_cannot_be_are_refused_with_what_is_allowed(tiny, option, said):
    with pytest.raises(UserError) as caught:
        tiny(option)
    assert said in str(caught.value)
