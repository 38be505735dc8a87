"""The config of docs/configs.md is one that halfstep takes."""

import re
from pathlib import Path

from halfstep.train.config_files import load

PAGE = Path(__file__).parents[2] / "docs" / "configs.md"


def test_the_example_is_a_config(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my.yaml").write_text(example)
    config = load(str(tmp_path / "my.yaml"), ["epochs=5", "optimizer.lr=1e-3"])
    assert config.optimizer.name == "adamw"
    assert (config.epochs, config.optimizer.lr) == (5, 1e-3)
    assert config.build_recipe().loss_scale.init == 1024
    assert config.data.resolution == load("digits").data.resolution
