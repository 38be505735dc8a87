"""The config of docs/configs.md is one that halfstep takes."""

import re
from pathlib import Path

from halfstep.train.config.files import load
from halfstep.train.config.model import ModelConfig
from halfstep.yaml_text import parse

PAGE = Path(__file__).parents[2] / "docs" / "configs.md"


def blocks():
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_is_a_config(tmp_path):
    example = blocks()[0]
    (tmp_path / "my.yaml").write_text(example)
    config = load(str(tmp_path / "my.yaml"), ["epochs=5", "optimizer.lr=1e-3"])
    assert config.optimizer.name == "adamw"
    assert (config.epochs, config.optimizer.lr) == (5, 1e-3)
    assert config.build_recipe().loss_scale.init == 1024
    assert config.data.resolution == load("digits").data.resolution


def test_the_sections_are_sections(tmp_path):
    model = blocks()[1]
    inline = re.findall(r"`(?:optimizer: )?(\{name: .*?\})`", PAGE.read_text(), re.DOTALL)
    assert len(inline) == 3
    for section in inline:
        kind = "optimizer" if "lamb" in section else "schedule"
        load("digits", [f"{kind}={section}"])
    values = parse(model, "the page")["model"]
    assert ModelConfig.model_validate(values).freeze == ("conv1", "bn1", "layer[12]")


def test_what_the_page_says_of_a_run_is_what_its_examples_make(tmp_path):
    """The examples are found by what they set, so that none can be taken out unnoticed."""
    configs = {}
    for setting in ("average", "lr_scaling", "mixup"):
        (example,) = [block for block in blocks() if setting in block]
        (tmp_path / f"{setting}.yaml").write_text(example)
        configs[setting] = load(str(tmp_path / f"{setting}.yaml"))
    ending = configs["average"]
    assert ending.average.decay == 0.99
    assert (ending.early_stopping.metric, ending.early_stopping.patience) == ("loss", 3)
    larger = configs["lr_scaling"]
    assert larger.lr_scaling.factor(larger.batch_size * larger.accumulate) == 8
    assert larger.optimizer.momentum == load("digits").optimizer.momentum
    augment = configs["mixup"].data.augment.settings()
    assert (augment.mixup, augment.cutmix, augment.crop) == (0.2, 1.0, "resized")
    mixed = load("imagenette/resnet18", ["data.augment={preset: mixed}"]).data.augment.settings()
    assert mixed.mixup
    assert mixed.cutmix
    assert mixed.randaugment
    assert mixed.erase
