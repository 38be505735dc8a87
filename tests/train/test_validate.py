import pytest
import torch

from halfstep.train.setup import set_up
from halfstep.train.validate import validate


@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_figures_are_those_of_the_whole_split_at_once(tiny, recipe):
    setup = set_up(tiny(recipe=recipe), torch.device("cpu"))
    images, labels = setup.val.dataset.tensors
    model = setup.engine.model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=recipe == "bf16"):
        logits = model(images)
    model.train()
    figures = validate(setup)
    assert logits.dtype == (torch.bfloat16 if recipe == "bf16" else torch.float32)
    expected = torch.nn.functional.cross_entropy(logits.float(), labels).item()
    assert figures.loss == pytest.approx(expected, rel=1e-5 if recipe == "fp32" else 1e-2)
    assert figures.accuracy == pytest.approx(
        (logits.argmax(1) == labels).float().mean().item(), abs=0.01
    )
    assert model.training
