import pytest
import torch

from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.build import models
from halfstep.train.build.dry_run import dry_run


@pytest.fixture
def parts(tiny):
    config = tiny()
    loaded = data.load(
        config.data, batch_size=config.batch_size, seed=0, device=torch.device("cpu")
    )
    classes, shape = len(loaded.classes), loaded.image_shape
    return loaded, models.build(config.model, classes=classes, image_shape=shape)


def test_a_recipe_that_refuses_the_optimizer_is_refused_as_in_the_run(tiny, parts):
    with pytest.raises(UserError, match=r"knows torch.optim.SGD, Adam and AdamW, not Lamb"):
        dry_run(tiny("optimizer={name: lamb, lr: 0.1}", recipe="bf16-sr"), *parts)


@pytest.mark.parametrize("recipe", ["fp32", "o2", "half", "fp8", "bf16-sr"])
def test_the_model_comes_back_in_its_own_format(tiny, parts, recipe):
    loaded, model = parts
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dry_run(tiny("average={decay: 0.9}", recipe=recipe), loaded, model)
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        # What a half format cannot hold has been rounded, so that the next recipe is not misled.
        assert torch.allclose(after[name], value, atol=1e-2)
