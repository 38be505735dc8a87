import pytest

from halfstep.errors import UserError
from halfstep.train.config.data import DigitsConfig
from halfstep.train.config.files import find, load, merge, parse_options, resolved, shipped
from halfstep.train.config.optimizer import AdamWConfig


def test_every_shipped_config_is_valid_and_described():
    for name in shipped():
        assert load(name).name == name
        assert load(name).description
    assert "digits" in shipped()


def test_resolved_config_loads_to_the_same(tiny, tmp_path):
    config = tiny("clip_norm=1.0", "recipe.loss_scale.init=8", recipe="fp16")
    (tmp_path / "config.yaml").write_text(resolved(config))
    assert load(str(tmp_path / "config.yaml")) == config


def test_base_is_found_by_name_and_by_relative_path(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "parent.yaml").write_text("base: digits\nepochs: 3\nseed: 5\n")
    (tmp_path / "sub" / "child.yaml").write_text(
        "base: ../parent.yaml\nseed: 6\ndata: {workers: 1}\n"
    )
    config = load(str(tmp_path / "sub" / "child.yaml"))
    assert (config.epochs, config.seed, config.data.workers) == (3, 6, 1)
    assert config.data.resolution == load("digits").data.resolution
    assert config.name == "child"
    assert config.description == ""


def test_circle_of_bases_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(
        UserError, match=r"circle: a\.yaml -> b\.yaml -> a\.yaml; take one `base:` out"
    ):
        load(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: digit\n", "f.yaml: base: no config is named 'digit'"),
        ("base: [digits]\n", "base is .*allowed: a config's name or a relative path"),
        ("- 1\n", "holds no config"),
        ("", "holds no config"),
    ],
)
def test_files_that_are_no_configs_are_refused(tmp_path, text, said):
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        load(str(tmp_path / "f.yaml"))


def test_binary_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read the config"):
        load(str(tmp_path / "f.yaml"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("digit", "no config is named 'digit'.*did you mean 'digits'"),
        ("nowhere.yaml", "no config file at 'nowhere.yaml'; halfstep init DIR .*configs: .*digits"),
    ],
)
def test_unknown_config_is_refused(name, said):
    with pytest.raises(UserError, match=said):
        find(name)


def test_flags_and_options_have_the_last_word_over_files_and_not_over_each_other(tiny):
    assert tiny("seed=3").seed == 3
    assert tiny(seed=2).seed == 2
    with pytest.raises(UserError, match="--seed 2 and --options seed=3 both set seed; write one"):
        tiny("seed=3", seed=2)
    with pytest.raises(UserError, match="--recipe o2 and --options recipe=fp16 both set recipe"):
        tiny("recipe=fp16", recipe="o2")
    assert tiny("recipe.loss_scale=8", recipe="o2").recipe == {"base": "o2", "loss_scale": 8}
    assert tiny(seed=None).seed == 0


def test_option_values_are_yaml():
    parsed = parse_options(["a.b=1e-3", "a.c=[1, x]", "d=", "e=true", "f=a=b"])
    assert parsed == {"a": {"b": 1e-3, "c": [1, "x"]}, "d": None, "e": True, "f": "a=b"}


@pytest.mark.parametrize("option", ["epochs", "=3", "a..b=1", "1=2", "a b=1"])
def test_option_that_is_no_assignment_is_refused(option):
    with pytest.raises(UserError, match="--options takes key=value, not"):
        parse_options([option])


def test_section_whose_name_changes_starts_anew(tiny):
    # In either order on the command line, the momentum of SGD is gone and the lr is kept.
    for options in (
        ["optimizer.name=adamw", "optimizer.lr=0.5"],
        ["optimizer.lr=0.5", "optimizer.name=adamw"],
    ):
        assert tiny(*options).optimizer == AdamWConfig(name="adamw", lr=0.5)
    assert tiny("model.name=resnet10t").model.args == {}


def test_mappings_merge_by_key_and_all_else_is_replaced():
    below = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert merge(below, {"a": {"y": [3]}, "c": 2}) == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 2}
    assert below == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_another_source_keeps_what_the_model_sees_of_the_images():
    before = load("cifar10/resnet18", ["data.on_error=skip"]).data
    for options in (["data.name=csv", "data.root=here"], ["data={name: csv, root: here}"]):
        data = load("cifar10/resnet18", ["data.on_error=skip", *options]).data
        assert (data.name, data.root) == ("csv", "here")
        assert (data.resolution, data.workers, data.on_error) == (64, 4, "skip")
        assert data.augment == before.augment
    assert load("cifar10/resnet18", ["data.name=csv"]).data.root == "."
    assert load("cifar10/resnet18", ["data.name=csv", "data.resolution=96"]).data.resolution == 96
    # The digits have neither augmentation nor files that cannot be read.
    assert load("cifar10/resnet18", ["data.name=digits"]).data == DigitsConfig(
        resolution=64, workers=4
    )


def test_another_source_in_a_file_keeps_them_too(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: cifar10/resnet18\ndata: {name: folder, root: x}\n")
    assert load(str(tmp_path / "mine.yaml")).data.resolution == 64


def test_empty_mapping_clears_what_is_below_it(tmp_path, tiny):
    (tmp_path / "mine.yaml").write_text("base: digits\nmodel: {args: {}}\n")
    model = load(str(tmp_path / "mine.yaml")).model
    assert (model.name, model.args) == ("timm:resnet18", {})
    cleared = tiny("model.args={}")
    assert cleared.model.args == {}
    assert "layers" in tiny().model.args
    for options in (
        ["model.args={}", "model.args.drop_rate=0.5"],
        ["model.args.layers=[2]", "model.args={}", "model={args: {drop_rate: 0.5}}"],
    ):
        config = tiny(*options)
        assert config.model.args == {"drop_rate": 0.5}
        (tmp_path / "config.yaml").write_text(resolved(config))
        assert load(str(tmp_path / "config.yaml"), flags={"device": "cpu"}).model == config.model
    with pytest.raises(UserError, match=r"data\.name is missing"):
        tiny("data={}")


def test_dotted_recipe_option_changes_the_recipe_in_force(tiny):
    assert tiny("recipe.loss_scale.init=8", recipe="fp16").build_recipe().autocast == "fp16"
    assert tiny("recipe=fp16", "recipe.loss_scale.init=8").build_recipe().autocast == "fp16"
    assert tiny("recipe={autocast: bf16}").build_recipe().params == "fp32"
    assert tiny("recipe.base=bf16", recipe="fp16").build_recipe().autocast == "bf16"


def test_a_recipe_is_read_from_another_config_next_to_it_and_can_be_overridden(tmp_path):
    (tmp_path / "r.yaml").write_text("recipe: {base: fp16, loss_scale: {init: 256}}\n")
    (tmp_path / "mine.yaml").write_text("base: digits\nrecipe: r.yaml\n")
    mine = str(tmp_path / "mine.yaml")
    assert load(mine).build_recipe().scaling.init == 256
    other = load(mine, ["recipe.loss_scale.init=1024"]).build_recipe()
    assert (other.scaling.init, other.autocast) == (1024, "fp16")
    given = [f"recipe={tmp_path / 'r.yaml'}", "recipe.loss_scale.init=512"]
    assert load("digits", given).build_recipe().scaling.init == 512


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fashion.yml", "no config file at 'fashion.yml'; .*did you mean 'fashion.yaml'"),
        ("fashon.yaml", "did you mean 'fashion.yaml'"),
        ("fashion", "no config is named 'fashion'; .*did you mean 'fashion.yaml'"),
        ("below/cars", "did you mean 'below/cars.yml'"),
        ("digit", "did you mean 'digits'"),
        ("below", "'below' is a folder and no config; halfstep init below writes one"),
        ("run", "'run' is a run and no config; write run/config.yaml"),
    ],
)
def test_a_config_that_is_not_there_is_answered_with_the_closest_one(
    tmp_path, monkeypatch, given, said
):
    monkeypatch.chdir(tmp_path)
    for name in ("fashion.yaml", "below/cars.yml", "run/config.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=said):
        find(given)
