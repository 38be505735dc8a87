import json

import pytest

from halfstep.train.config import Config
from halfstep.train.config.explain import explained, schema
from halfstep.train.config.files import load, shipped


@pytest.mark.parametrize("name", list(shipped()))
def test_explained_config_is_the_config_and_every_field_has_its_words(name, tmp_path):
    config = load(name)
    text = explained(config)
    (tmp_path / "shown.yaml").write_text(text)
    assert load(str(tmp_path / "shown.yaml")) == config
    lines = text.splitlines()
    for field in ("epochs", "on_nonfinite", "auto_microbatch"):
        (place,) = [n for n, line in enumerate(lines) if line.startswith(f"{field}: ")]
        words = Config.model_fields[field].description.split()
        assert lines[place - 1].startswith("# ")
        assert lines[place - 1].split()[-1] == words[-1]
    assert max(map(len, (line for line in lines if line.lstrip().startswith("#")))) <= 100


def test_option_is_shown_where_it_acts(tiny):
    text = explained(tiny("early_stopping.patience=3", "recipe.loss_scale.init=8", recipe="fp16"))
    assert "early_stopping:\n  # Which figure of the validation must get better.\n" in text
    assert "\n  patience: 3\n" in text
    assert "recipe:\n  base: fp16\n  loss_scale: {init: 8}\n" in text


def test_schema_knows_every_field_and_allows_a_base():
    found = json.loads(json.dumps(schema()))
    assert set(Config.model_fields) | {"base"} == set(found["properties"])
    assert all(each["description"] for each in found["properties"].values())
    assert "required" not in found
    assert found["additionalProperties"] is False


def test_schema_leaves_open_which_kind_a_part_of_a_section_is_of():
    """A part fits several kinds, and a name of timm's optimizers may be any."""
    assert "oneOf" not in json.dumps(schema())
