import pytest

from halfstep.errors import UserError
from halfstep.recipe import recipe
from halfstep.train.config import Config
from halfstep.train.config.files import load, resolved


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["fp16=True"], "fp16"),
        (["fp16=true", "recipe=fp16"], "fp16"),
        (["fp16=false"], "fp32"),
        (["fp16=true", "recipe.loss_scale.init=8"], {"base": "fp16", "loss_scale": {"init": 8}}),
    ],
)
def test_fp16_is_the_recipe_of_that_name_and_nothing_more(tiny, options, wanted):
    config = tiny(*options)
    assert config.recipe == wanted
    assert "\nfp16:" not in resolved(config)


@pytest.mark.parametrize(
    ("text", "options", "flags", "wanted"),
    [
        ("fp16: true", [], {}, "fp16"),
        ("fp16: true", [], {"recipe": "bf16"}, "bf16"),
        ("fp16: true", ["recipe=o2"], {}, "o2"),
        ("fp16: true", ["fp16=False"], {}, "fp32"),
        ("recipe: bf16", ["fp16=True"], {}, "fp16"),
        ("recipe: bf16", ["fp16=False"], {}, "bf16"),
    ],
)
def test_whoever_speaks_last_decides_by_either_name(tmp_path, text, options, flags, wanted):
    (tmp_path / "c.yaml").write_text(f"base: digits\n{text}\n")
    assert load(str(tmp_path / "c.yaml"), options, flags).recipe == wanted


@pytest.mark.parametrize(
    ("options", "flags", "said"),
    [
        (
            ["fp16=True", "recipe=bf16"],
            {},
            "--options: fp16 is true but recipe is 'bf16'; leave one",
        ),
        (["fp16=True"], {"recipe": "o2"}, "--options: fp16 is true but recipe is 'o2'; leave one"),
        (["fp16=True"], {"recipe": "fp32"}, "--options: fp16 is true but recipe is 'fp32'"),
        (["fp16=False"], {"recipe": "fp16"}, "--options: fp16 is false but recipe is 'fp16'"),
        (["fp16=True", "recipe.base=bf16"], {}, "fp16 is true but recipe is {'base': 'bf16'}"),
        (["fp16=half"], {}, "--options: fp16 is 'half'; allowed: a valid boolean"),
    ],
)
def test_another_recipe_beside_it_is_refused(tiny, options, flags, said):
    with pytest.raises(UserError) as caught:
        tiny(*options, **flags)
    assert str(caught.value).startswith(said) or said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_contradiction_in_a_file_names_it(tmp_path):
    (tmp_path / "c.yaml").write_text("base: digits\nfp16: true\nrecipe: bf16\n")
    with pytest.raises(UserError, match=r"c\.yaml: fp16 is true but recipe is 'bf16'"):
        load(str(tmp_path / "c.yaml"))


def test_config_made_in_python_takes_it_too(tiny):
    values = tiny().model_dump()
    del values["recipe"]
    config = Config.model_validate({**values, "fp16": True})
    assert config.build_recipe() == recipe("fp16")
