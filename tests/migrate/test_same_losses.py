"""Programs of the shapes that people have give the same losses before and after.

Before, they run through `halfstep.apex`; after, on the engine or on torch.amp.
"""

import pytest
import torch

from halfstep import apex
from halfstep.engine import EngineWarning

from .conftest import migrate, source

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

TOLERANCE = {"halfstep": 2e-3, "torch": 2e-3}
"""Relative; fp16 has 5e-4 between two numbers, and the functions cast are not quite the same."""


@pytest.fixture(autouse=True)
def _apex():
    apex.install()
    yield
    apex.uninstall()


def losses(names):
    return torch.tensor(names["LOSSES"], dtype=torch.float64).flatten()


def compare(run, text, to, changed=None):
    before = losses(run(text))
    done = migrate(changed or text, to)
    assert "import apex" not in done.after
    assert "from apex" not in done.after
    after = losses(run(done.after))
    torch.testing.assert_close(before, after, rtol=TOLERANCE[to], atol=TOLERANCE[to] / 10)
    assert len(before) >= 6
    return done


ENGINE = ["imagenet", "accumulate", "tacotron2", "swin"]


@pytest.mark.parametrize("name", ENGINE)
def test_on_the_engine(run, name):
    notes = compare(run, source(name), "halfstep").notes
    if name == "swin":  # it clips after every micro-batch
        assert [note.reason.partition(";")[0] for note in notes] == [
            "with Apex, this clipped after every backward"
        ]
    else:
        assert notes == ()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_two_models_and_three_losses_on_the_engine(run, level):
    text = source("dcgan").replace('OPT_LEVEL = "O1"', f'OPT_LEVEL = "{level}"')
    assert compare(run, text, "halfstep").notes == ()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_settings_from_the_command_line_on_the_engine(run, level):
    text = source("imagenet").replace(
        '"O2", "--loss-scale", "128.0", "--keep-batchnorm-fp32", "True"', f'"{level}"'
    )
    assert compare(run, text, "halfstep").notes == ()


@pytest.mark.parametrize("to", ["halfstep", "torch"])
def test_gradients_reduced_by_hand(run, to):
    done = compare(run, source("uniter"), to)
    reasons = [note.reason for note in done.notes]
    left_out = {
        "halfstep": "loss_id=task2scaler[name] is left out",
        "torch": "GradScaler has no limits",
    }
    assert len(reasons) == 2
    assert any(reason.startswith(left_out[to]) for reason in reasons)
    assert any(reason.startswith("a step before the first backward") for reason in reasons)


def test_larc_and_gradients_cancelled_by_hand(run):
    with pytest.warns(EngineWarning, match="gradients changed between"):
        assert compare(run, source("swav"), "halfstep").notes == ()


@pytest.mark.parametrize("level", ["O0", "O1"])
@pytest.mark.parametrize("name", ["dcgan", "imagenet", "swin"])
def test_on_torch(run, name, level):
    text = source(name)
    for there in ('OPT_LEVEL = "O1"', '"--opt-level", "O2"', 'AMP_OPT_LEVEL="O1"'):
        text = text.replace(there, there[:-3] + f'{level}"')
    text = text.replace(', "--loss-scale", "128.0", "--keep-batchnorm-fp32", "True"', "")
    compare(run, text, "torch")


@pytest.mark.parametrize("to", ["halfstep", "torch"])
def test_a_scaler_class_runs_where_it_does_not_clip(run, to):
    text = source("timm_scaler")
    before, done = losses(run(text)), migrate(text, to)
    after = losses(run(done.after))
    torch.testing.assert_close(before, after, rtol=TOLERANCE[to], atol=1e-3)
    assert [note.line for note in done.notes] == ([29, 32] if to == "halfstep" else [])


@pytest.mark.parametrize("name", ["tacotron2", "swav", "swin", "uniter"])
def test_without_fp16_the_engine_trains_in_fp32(run, name):
    text = source(name)
    for switch in ("fp16_run=True", "use_fp16=True", "fp16=True"):
        text = text.replace(switch, switch.replace("True", "False"))
    text = text.replace('AMP_OPT_LEVEL="O1"', 'AMP_OPT_LEVEL="O0"')
    if name == "uniter":  # it asks amp for nothing but a scale of 1
        before = losses(run(text))
    else:
        before = losses(run(text.replace("from apex import amp", "amp = None")))
    after = losses(run(migrate(text, "halfstep").after))
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)
