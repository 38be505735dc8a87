import pickle

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from halfstep.errors import UserError
from halfstep.train.build import weights

SMALL = {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8]}


def small(classes=3, channels=1, seed=0):
    torch.manual_seed(seed)
    return timm.create_model("resnet18", num_classes=classes, in_chans=channels, **SMALL)


def fit(model, given, classes=3):
    weights.fit(model, given, classes=classes, source="file.pth")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("w.safetensors", save_file),
        ("w.pth", torch.save),
        ("w.pth", lambda state, file: torch.save({"state_dict": state, "epoch": 3}, file)),
        ("w.pt", lambda state, file: torch.save({"model": state}, file)),
        (
            "w.pt",
            lambda state, file: torch.save(
                {"model": {key: 0 * value for key, value in state.items()}, "averaged": state}, file
            ),
        ),
        ("w.pt", lambda state, file: torch.save({"model": state, "averaged": None}, file)),
        (
            "w.pt",
            lambda state, file: torch.save(
                {f"module._orig_mod.{key}": value for key, value in state.items()}, file
            ),
        ),
    ],
    ids=["safetensors", "pth", "state_dict", "model", "averaged", "no average", "prefixes"],
)
def test_weights_of_a_file_are_the_models(tmp_path, name, write):
    there, here = small(seed=1), small(seed=2)
    write(there.state_dict(), tmp_path / name)
    fit(here, weights.read(str(tmp_path / name)))
    wanted = there.state_dict()
    assert all(torch.equal(value, wanted[key]) for key, value in here.state_dict().items())


class Malicious:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was executed",))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.pth", None, "but there is no such file"),
        ("bad.pth", b"hello", "cannot be read as tensors alone"),
        ("bad.safetensors", b"hello", "cannot be read as tensors alone"),
        ("evil.pth", pickle.dumps(Malicious(), protocol=2), "cannot be read as tensors alone"),
        ("list.pth", [1, 2], "holds no state dict"),
        ("empty.pth", {}, "holds no state dict"),
    ],
)
def test_file_that_is_no_state_dict_is_one_line(tmp_path, name, content, said):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(UserError, match=said) as caught:
        weights.read(str(file))
    assert "\n" not in str(caught.value)


def test_malicious_checkpoint_is_refused_and_not_executed(tmp_path):
    torch.save({"state_dict": {"fc.weight": Malicious()}}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="cannot be read as tensors alone"):
        weights.read(str(tmp_path / "evil.pth"))


@pytest.mark.parametrize("leave_out", [False, True])
def test_last_layer_of_another_number_of_classes_starts_anew_and_that_is_said(capsys, leave_out):
    there, here = small(classes=7, seed=1).state_dict(), small(seed=2)
    if leave_out:
        there = {name: value for name, value in there.items() if not name.startswith("fc.")}
    own = here.fc.weight.clone()
    fit(here, there)
    assert torch.equal(here.fc.weight, own)
    assert torch.equal(here.conv1.weight, there["conv1.weight"])
    said = capsys.readouterr().err
    assert "file.pth: the last layer (fc." in said
    assert "is initialized randomly, for 3 classes" in said


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "model.", "net.backbone."])
def test_prefix_of_what_wraps_a_model_is_taken_off_and_that_is_said(capsys, prefix):
    there, here = small(classes=7, seed=1).state_dict(), small(seed=2)
    fit(here, {f"{prefix}{name}": value for name, value in there.items()})
    assert torch.equal(here.layer1[0].conv1.weight, there["layer1.0.conv1.weight"])
    said = capsys.readouterr().err
    assert f"file.pth: the prefix {prefix!r} is removed from its names\n" in said
    assert "is initialized randomly, for 3 classes" in said


def test_what_else_lies_beside_a_wrapped_model_is_named():
    given = {f"model.{name}": value for name, value in small(seed=1).state_dict().items()}
    with pytest.raises(UserError, match=r"holds 'loss.weight', which the model does not have"):
        fit(small(), {**given, "loss.weight": torch.ones(3)})


def test_file_of_two_models_is_refused_with_their_prefixes():
    state = small(seed=1).state_dict()
    given = {
        f"{owner}.{name}": value for owner in ("model", "ema") for name, value in state.items()
    }
    with pytest.raises(UserError, match=r"names start with 'model\.', 'ema\.'; write a file of"):
        fit(small(), given)


def test_nothing_is_said_where_all_fits(capsys):
    fit(small(), small(seed=1).state_dict())
    assert capsys.readouterr().err == ""


def test_weights_for_colour_are_summed_for_grey():
    there, here = small(channels=3, seed=1).state_dict(), small()
    fit(here, there)
    assert torch.allclose(here.conv1.weight, there["conv1.weight"].sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("layer1.0.conv1.weight"), "has no 'layer1.0.conv1.weight'"),
        (lambda s: s.update(other=torch.ones(1)), "holds 'other', which the model does not have"),
        (
            lambda s: s.update({"layer1.0.conv1.weight": torch.ones(2, 2)}),
            r"'layer1.0.conv1.weight' is of shape \(2, 2\), and the model's of \(8, 64, 3, 3\)",
        ),
    ],
)
def test_anything_else_that_does_not_fit_is_refused(change, said):
    given = small(seed=1).state_dict()
    change(given)
    with pytest.raises(UserError, match=said):
        fit(small(), given)


def test_last_layer_is_found_in_any_library():
    assert weights.head_of(small(), 3) == ("fc",)
    squeeze = torchvision.models.squeezenet1_1(num_classes=3)
    assert weights.head_of(squeeze, 3) == ("classifier.1",)
