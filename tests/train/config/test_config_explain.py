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
    assert "early_stopping:\n  # Validation metric that must improve.\n" in text
    assert "\n  patience: 3\n" in text
    assert "recipe:\n  base: fp16\n  loss_scale: {init: 8}\n" in text


@pytest.mark.parametrize("name", list(shipped()))
def test_what_is_not_set_is_a_comment_and_no_null(name):
    assert not [line for line in explained(load(name)).splitlines() if line.endswith(": null")]


def test_what_is_not_set_shows_what_could_be_written(tmp_path):
    config = load("imagenet/resnet50", ["model.freeze=[conv1]"])
    text = explained(config)
    for shown in (
        "\n# clip_norm: NUMBER\n",
        "\n# max_steps: INTEGER\n",
        "\n# average:\n#   # Decay of the moving average at each optimizer step.\n",
        "\n#   decay: 0.999\n",
        "\n#   patience: INTEGER\n",
        "\n  # weights: TEXT\n",
        # What the preset sets, and what comes from elsewhere.
        "\n    # crop: resized\n",
        "\n    # crop_scale: [0.08, 1.0]\n",
        "\n    # mean: [NUMBER, ...]\n",
        "\n    # limit: INTEGER\n",
    ):
        assert shown in text, shown
    written = text.replace("# clip_norm: NUMBER", "clip_norm: 1.5")
    written = written.replace("# average:\n#   # Decay", "average:\n  # Decay")
    written = written.replace("#   decay: 0.999", "  decay: 0.999")
    (tmp_path / "shown.yaml").write_text(written)
    set_ = load(str(tmp_path / "shown.yaml"))
    assert (set_.clip_norm, set_.average.decay) == (1.5, 0.999)


def test_null_that_means_something_stays(tmp_path):
    config = load("leaves/resnet18_b16x8", ["data.train.ann_file=null", "data.val.ann_file=a.csv"])
    (tmp_path / "shown.yaml").write_text(explained(config))
    shown = load(str(tmp_path / "shown.yaml"))
    assert shown.data.train.ann_file is None
    assert shown.data == config.data


def test_schema_knows_every_field_and_allows_a_base():
    found = json.loads(json.dumps(schema()))
    assert set(Config.model_fields) | {"base"} == set(found["properties"])
    assert all(each["description"] for each in found["properties"].values())
    assert "required" not in found
    assert found["additionalProperties"] is False


def test_schema_leaves_open_which_kind_a_part_of_a_section_is_of():
    """A part fits several kinds, and a name of timm's optimizers may be any."""
    assert "oneOf" not in json.dumps(schema())
