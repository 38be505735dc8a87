import pytest

from halfstep.errors import UserError
from halfstep.train.config import Config
from halfstep.train.config.errors import keys
from halfstep.train.config.files import load


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["epochs=few"], "--options: epochs is 'few'; allowed: a valid integer"),
        (["epochs=1.5"], "--options: epochs is 1.5; allowed: a valid integer"),
        (["data.resolution=true"], "--options: data.resolution is True; allowed: a valid integer"),
        (["epochs=0"], "--options: epochs is 0; allowed: greater than or equal to 1"),
        (["data.name=digit"], "--options: data.name is 'digit'; allowed: digits, csv, folder, "),
        (["model.args=3"], "--options: model.args is 3; allowed: a mapping"),
        (["optimizer=sgd"], "--options: optimizer is 'sgd'; allowed: a mapping"),
        (["optimizer=null"], "--options: optimizer is None; allowed: a mapping"),
        (
            ["schedule.name=cosin"],
            (
                "--options: schedule.name is 'cosin'; allowed: constant, cosine, one-cycle, step, "
                "multistep, plateau; did you mean 'cosine'?"
            ),
        ),
        (["optimizer.name=3"], "--options: optimizer.name is 3; allowed: a valid string"),
        (
            ["optimizer={name: lamb, lr: -1}"],
            "--options: optimizer.lr is -1; allowed: greater than 0",
        ),
        (
            ["optimizer={name: lamb, lr: 1, momentum: 2}"],
            (
                "--options: no key is named 'optimizer.momentum' for this optimizer.name, but for "
                "sgd; allowed here: name, lr, "
                "decay_norms_and_biases, layer_decay, head_lr, weight_decay, args"
            ),
        ),
        (
            ["data.cache_images_folder=x"],
            (
                "--options: no key is named 'data.cache_images_folder' for this data.name, but for "
                "csv, folder, webdataset; allowed here: cache_images, "
                "cache_images_gigabytes, name, resolution, workers, train, val; did you mean "
                "'data.cache_images'?"
            ),
        ),
        (["data.train.cache_images=ram"], "--options: no key is named 'data.train.cache_images'; "),
        (
            ["optimizer={name: adamw, betas: [0.9, 2]}"],
            "--options: optimizer.betas.1 is 2; allowed: less than 1",
        ),
        (
            ["optimizer.lrr=1"],
            (
                "--options: no key is named 'optimizer.lrr'; allowed here: name, lr, "
                "decay_norms_and_biases, layer_decay, head_lr, momentum, nesterov, weight_decay, "
                "state; did you mean 'optimizer.lr'?"
            ),
        ),
        (["epochs=a", "seed=b"], "--options: seed is 'b'; allowed: a valid integer (and 1 more)"),
    ],
)
def test_mistake_is_one_line_with_source_field_value_and_what_is_allowed(tiny, options, line):
    with pytest.raises(UserError) as caught:
        tiny(*options)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("epocs", "epochs"),
        ("lr", "optimizer.lr"),
        ("model.nam", "model.name"),
        ("args", "model.args"),
    ],
)
def test_unknown_key_names_the_closest_valid_one(tiny, key, meant):
    with pytest.raises(UserError, match=f"no key is named '{key}'.*did you mean '{meant}'"):
        tiny(f"{key}=1")


def test_key_of_another_optimizer_is_not_suggested_to_itself(tiny):
    with pytest.raises(UserError) as caught:
        tiny("optimizer.betas=[0.9, 0.99]")
    assert "did you mean 'optimizer.betas'" not in str(caught.value)


def test_error_names_the_file_or_flag_that_the_value_came_from(tiny, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("base: digits\nepochs: few\n")
    with pytest.raises(UserError, match=r"bad\.yaml: epochs is 'few'"):
        load(str(file))
    with pytest.raises(UserError, match=r"^--recipe: no recipe is named 'fp61'"):
        tiny(recipe="fp61")


def test_missing_key_names_the_file(tmp_path):
    file = tmp_path / "empty.yaml"
    file.write_text("seed: 1\n")
    with pytest.raises(UserError, match=r"empty\.yaml: epochs is missing; write it .*epochs="):
        load(str(file))


def test_a_file_with_only_a_recipe_is_told_where_it_belongs(tmp_path):
    file = tmp_path / "t4.yaml"
    file.write_text("recipe: {base: o2}\n")
    with pytest.raises(UserError, match=r"only a recipe: write it into a config, or pass it to En"):
        load(str(file))


def test_section_without_its_name_is_told_so(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text(
        "epochs: 1\nbatch_size: 1\nmodel: {name: x}\noptimizer: {name: sgd}\nschedule: {}\n"
    )
    with pytest.raises(UserError, match=r"f\.yaml: schedule\.name is missing"):
        load(str(file))


def test_keys_are_dotted_and_include_every_kind_of_section():
    assert {"epochs", "optimizer.betas", "optimizer.momentum", "model.args"} <= set(keys(Config))
