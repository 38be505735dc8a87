import pytest
import torch

from halfstep.train.build.setup import set_up
from halfstep.train.run.validate import validate
from halfstep.train.task import sample_sheet


@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_figures_are_those_of_the_whole_split_at_once(tiny, recipe):
    setup = set_up(tiny(recipe=recipe), torch.device("cpu"))
    images, labels = (torch.cat(parts) for parts in zip(*setup.task.data.val.epoch(), strict=True))
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


def test_samples_show_the_first_images_and_scalars_are_numbers(tiny):
    setup = set_up(tiny(), torch.device("cpu"))
    figures = validate(setup)
    images, labels = next(iter(setup.task.data.val.epoch()))
    with setup.engine.evaluating():
        predictions = setup.engine.model(images[:8]).argmax(1)
    wanted = sample_sheet.draw(
        images[:8],
        labels[:8],
        predictions,
        classes=setup.task.data.classes,
        normalisation=setup.task.data.normalisation,
    )
    assert torch.equal(figures.samples, wanted)
    assert figures.scalars() == {
        "loss": figures.loss,
        "accuracy": figures.accuracy,
        "top5": figures.top5,
        "macro_f1": figures.macro_f1,
    }
    assert int(figures.confusion.sum()) == 450


def test_top_5_is_no_figure_where_there_are_few_classes(pictures):
    setup = set_up(pictures("data.workers=0"), torch.device("cpu"))
    figures = validate(setup)
    assert figures.top5 is None
    assert set(figures.scalars()) == {"loss", "accuracy", "macro_f1"}
