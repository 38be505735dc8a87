"""The config of docs/configs.md is one that halfstep takes."""

import re
from pathlib import Path

from halfstep.train.config import ModelConfig
from halfstep.train.config.files import load
from halfstep.train.config.text import parse

PAGE = Path(__file__).parents[2] / "docs" / "configs.md"


def blocks():
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_is_a_config(tmp_path):
    example, _ = blocks()
    (tmp_path / "my.yaml").write_text(example)
    config = load(str(tmp_path / "my.yaml"), ["epochs=5", "optimizer.lr=1e-3"])
    assert config.optimizer.name == "adamw"
    assert (config.epochs, config.optimizer.lr) == (5, 1e-3)
    assert config.build_recipe().loss_scale.init == 1024
    assert config.data.resolution == load("digits").data.resolution


def test_the_sections_are_sections(tmp_path):
    _, model = blocks()
    inline = re.findall(r"`(?:optimizer: )?(\{name: .*?\})`", PAGE.read_text(), re.DOTALL)
    assert len(inline) == 3
    for section in inline:
        kind = "optimizer" if "lamb" in section else "schedule"
        load("digits", [f"{kind}={section}"])
    values = parse(model, "the page")["model"]
    assert ModelConfig.model_validate(values).freeze == ("conv1", "bn1", "layer[12]")
