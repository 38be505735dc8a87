import json
import logging

import pytest
import torch
from safetensors import safe_open
from torch import nn

from halfstep.errors import UserError
from halfstep.train.after import export
from halfstep.train.after.trained import open_run
from halfstep.train.build import models
from halfstep.train.store import checkpoint


def images(trained, count):
    return torch.randn(count, *trained.image_shape, generator=torch.Generator().manual_seed(7))


def logits(trained, batch):
    with torch.no_grad():
        return trained.model(batch)


def test_safetensors_hold_the_validated_weights_in_fp32(pictures_run):
    done = export.export(pictures_run, "safetensors")
    assert done.file == pictures_run / "export" / "best.safetensors"
    stored = checkpoint.load(checkpoint.path(pictures_run, "best"))
    with safe_open(done.file, "pt") as file:
        assert set(file.keys()) == set(stored.averaged)
        for name in file.keys():  # noqa: SIM118  (it is no mapping)
            tensor = file.get_tensor(name)
            assert torch.equal(tensor, stored.averaged[name])
            assert tensor.dtype in {torch.float32, torch.int64}
        facts = file.metadata()
    assert json.loads(facts["classes"]) == ["dark", "light"]
    preprocessing = json.loads(facts["preprocessing"])
    for name, value in stored.preprocessing.items():
        assert preprocessing[name] == pytest.approx(value)
    assert facts["epoch"] == "1"
    assert facts["recipe"] == "bf16"


def test_preprocessing_says_how_validation_resizes(pictures_run):
    trained = open_run(pictures_run)
    settings = trained.config.data.augment.settings()
    preprocessing = json.loads(export.describe(trained)["preprocessing"])
    side = trained.image_shape[1]
    assert preprocessing["resize_shorter_edge"] == round(side / settings.val_crop)
    assert preprocessing["resize_shorter_edge"] > side
    assert preprocessing["interpolation"] == settings.interpolation


def test_exported_weights_are_weights_to_start_from(pictures_run, tmp_path):
    done = export.export(pictures_run, "safetensors", file=tmp_path / "mine.safetensors")
    trained = open_run(pictures_run)
    section = trained.config.model.model_copy(update={"weights": str(done.file)})
    again = models.build(section, classes=2, image_shape=trained.image_shape).eval()
    batch = images(trained, 3)
    with torch.no_grad():
        assert torch.equal(again(batch), logits(trained, batch))


@pytest.mark.parametrize("count", [1, 5])
def test_torch_program_gives_the_eval_logits_for_any_batch(pictures_run, count):
    done = export.export(pictures_run, "torch", which="last")
    assert done.file.suffix == ".pt2"
    facts = {"classes.txt": "", "preprocessing.txt": ""}
    program = torch.export.load(done.file, extra_files=facts).module()
    trained = open_run(pictures_run, "last")
    batch = images(trained, count)
    assert torch.allclose(program(batch), logits(trained, batch), atol=1e-6)
    assert json.loads(facts["classes.txt"]) == ["dark", "light"]


def test_onnx_program_gives_the_eval_logits_for_any_batch(pictures_run, caplog):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    level = logging.getLogger("torch.onnx").level
    done = export.export(pictures_run, "onnx")
    assert done.difference < 1e-4
    assert logging.getLogger("torch.onnx").level == level
    session = onnxruntime.InferenceSession(done.file, providers=["CPUExecutionProvider"])
    trained = open_run(pictures_run)
    for count in (1, 5):
        batch = images(trained, count)
        (found,) = session.run(["logits"], {"images": batch.numpy()})
        assert torch.allclose(torch.from_numpy(found), logits(trained, batch), atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == ["dark", "light"]


def test_missing_package_is_one_line_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        UserError, match=r"needs the package onnx, .*pip install 'halfstep\[onnx\]'"
    ):
        export.export(tmp_path, "onnx")


class Branching(nn.Module):
    """Decides by the values of its input, which a tracer cannot follow."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, batch):
        means = batch.mean((2, 3))
        return self.head(means if float(means.sum()) > 0 else -means)


def test_model_that_cannot_be_exported_is_one_line(pictures_run, monkeypatch):
    trained = open_run(pictures_run)
    object.__setattr__(trained, "model", Branching())
    monkeypatch.setattr(export, "open_run", lambda *_: trained)
    with pytest.raises(UserError, match=r"cannot be exported as torch: .*--format safet") as caught:
        export.export(pictures_run, "torch", file=pictures_run / "export" / "never.pt2")
    assert "\n" not in str(caught.value)
    assert not (pictures_run / "export" / "never.pt2").exists()


def test_program_with_other_logits_is_not_written(pictures_run, monkeypatch, tmp_path):
    make = torch.export.export

    def tampered(model, *given, **named):
        twin = make(model, *given, **named)
        model.fc.bias = nn.Parameter(model.fc.bias.detach() + 1.0)
        return twin

    monkeypatch.setattr(torch.export, "export", tampered)
    trained = open_run(pictures_run)
    monkeypatch.setattr(export, "open_run", lambda *_: trained)
    with pytest.raises(UserError, match="logits differ from the model's by 1"):
        export.export(pictures_run, "torch", file=tmp_path / "never.pt2")
    assert not (tmp_path / "never.pt2").exists()


def test_file_that_cannot_be_written_is_one_line(pictures_run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write '.*file/x'"):
        export.export(pictures_run, "safetensors", file=tmp_path / "file" / "x")
