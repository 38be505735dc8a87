import pytest
import torch
from torch.nn import functional

from halfstep.errors import UserError
from halfstep.train.build import loss
from halfstep.train.config.files import load

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
LABELS = torch.tensor([0, 1, 2, 3, 1, 1])
MIXED = 0.7 * functional.one_hot(LABELS, 4) + 0.3 * functional.one_hot(LABELS.roll(1), 4)


def build(*options):
    return loss.build(load("digits", options), 4, torch.device("cpu"))


@pytest.mark.parametrize("labels", [LABELS, MIXED])
def test_the_default_is_torchs_cross_entropy_to_the_bit(labels):
    ours = build("label_smoothing=0.1")(LOGITS, labels)
    assert torch.equal(ours, functional.cross_entropy(LOGITS, labels, label_smoothing=0.1))


@pytest.mark.parametrize("labels", [LABELS, MIXED])
def test_class_weights_count_images_and_not_themselves(labels):
    weights = [1.0, 0.5, 2.0, 0.0]
    theirs = functional.cross_entropy(
        LOGITS, labels, weight=torch.tensor(weights), label_smoothing=0.1, reduction="sum"
    )
    ours = build(f"loss.class_weights={weights}", "label_smoothing=0.1")(LOGITS, labels)
    torch.testing.assert_close(ours, theirs / 6)


@pytest.mark.parametrize("labels", [LABELS, MIXED])
def test_bce_asks_of_each_class_alone(labels):
    chances = functional.one_hot(labels, 4).float() if labels.ndim == 1 else labels
    yes = LOGITS.double().sigmoid()
    theirs = -(chances * yes.log() + (1 - chances) * (1 - yes).log()).mean()
    ours = build("loss.name=bce")(LOGITS, labels)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=0)


def test_focal_is_equation_4_and_with_gamma_0_cross_entropy():
    chance = LOGITS.double().softmax(1)[range(6), LABELS]
    theirs = -((1 - chance) ** 1.5 * chance.log()).mean()
    ours = build("loss={name: focal, gamma: 1.5}")(LOGITS, LABELS)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=0)
    plain = build("loss={name: focal, gamma: 0}")(LOGITS, LABELS)
    torch.testing.assert_close(plain, functional.cross_entropy(LOGITS, LABELS))


def test_a_loss_of_ones_own_is_imported():
    assert build("loss.name=import:torch.nn.functional:nll_loss") is functional.nll_loss


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["loss.name=hinge"], "'hinge' is not a loss; allowed: cross-entropy, bce, focal"),
        (["loss={name: bce, class_weights: [1, 2]}"], "class_weights have no effect on bce"),
        (["loss.gamma=1"], "gamma has no effect on cross-entropy; write name: focal"),
        (["loss.class_weights=[1, 2]"], "has 2 values, but there are 4 classes"),
        (["loss.class_weights=[0, 0]"], "all 0"),
        (["loss.name=import:nowhere:at_all"], "loss.name: cannot import 'nowhere'"),
        (
            ["loss.name=import:torch.nn.functional:nll_loss", "label_smoothing=0.1"],
            "does not support; write label_smoothing=0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, said):
    with pytest.raises(UserError, match=said):
        build(*options)


def test_the_loss_of_the_config_is_what_is_trained(tmp_path, monkeypatch):
    import halfstep

    monkeypatch.chdir(tmp_path)
    small = {"max_steps": 2, "log_every": 1, "data.train.limit": 64, "data.val.limit": 32}
    seen = {}

    class Losses(halfstep.Observer):
        def micro_batch(self, loss, logits, labels):
            seen.setdefault(self.of, (float(loss), logits, labels))

    for name in ("cross-entropy", "bce"):
        watch = Losses()
        watch.of = name
        halfstep.train(
            "digits",
            overrides={**small, "loss.name": name},
            observers=[watch],
            tag=name,
            quiet=True,
        )
    of_bce, logits, labels = seen["bce"]
    chances = functional.one_hot(labels, 10).float()
    theirs = functional.binary_cross_entropy_with_logits(logits.float(), chances)
    assert of_bce == pytest.approx(float(theirs), rel=1e-5)
    assert seen["cross-entropy"][0] != of_bce
