import pytest

from halfstep.compare.plan.arguments import (
    parse_axes,
    parse_devices,
    parse_looks,
    parse_margin,
    parse_seeds,
    parse_time_limit,
)
from halfstep.recipe import recipe
from halfstep.recipe.parse import parse_recipes


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1", (0,)), ("3", (0, 1, 2)), ("0,7,9", (0, 7, 9)), ("7,", (7,)), (" 1 , 2 ", (1, 2))],
)
def test_seeds_are_a_count_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "two", "", ",", "1,,2", "1.5", "0,-1", "²"])
def test_bad_seeds_are_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match=r"--seeds is .*3 means seeds 0, 1 and 2"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["10001", "999999999999"])
def test_more_seeds_than_any_comparison_has_are_refused_before_they_are_laid_out(text):
    with pytest.raises(ValueError, match=f"--seeds {text} asks for {text} runs; allowed: 10000"):
        parse_seeds(text)


def test_a_grid_of_billions_is_refused_before_it_is_laid_out():
    axes = [f"{key}={','.join(map(str, range(10)))}" for key in "abcdefghi"]
    with pytest.raises(ValueError, match="--grid asks for 1000000000 runs; allowed: 10000"):
        parse_axes(axes)
    assert len(parse_axes(axes[:4])) == 10_000


def test_a_seed_named_twice_is_refused():
    with pytest.raises(ValueError, match="names 7 twice"):
        parse_seeds("7,8,7")


def test_recipes_take_their_canonical_names():
    assert parse_recipes("fp32, bf16+FP32") == ("fp32", "fp32+bf16")


def test_two_spellings_of_one_recipe_are_refused():
    with pytest.raises(ValueError, match="names fp32 twice"):
        parse_recipes("fp32,FP32")


def test_unknown_recipe_names_the_closest():
    with pytest.raises(ValueError, match="did you mean 'fp16'"):
        parse_recipes("fp32,fp61")


def test_no_recipe_is_refused():
    with pytest.raises(ValueError, match="name one or more"):
        parse_recipes(" ,")


def test_a_recipe_that_the_config_spells_out_goes_by_its_name():
    own = recipe({"name": "mine", "params": "fp16"})
    assert parse_recipes("fp32,mine", own) == ("fp32", "mine")
    with pytest.raises(ValueError, match=r"no recipe is named 'mime'.*mine is the config's own"):
        parse_recipes("fp32,mime", own)


def test_a_file_among_the_recipes_is_refused_with_the_name_of_its_recipe(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: digits\nrecipe: {base: bf16, loss_scale: 128}\n")
    with pytest.raises(
        ValueError, match=r"takes only names.* its recipe 'bf16\*': --recipes fp32,bf"
    ):
        parse_recipes(f"fp32,{file}")


def test_axes_multiply():
    assert parse_axes(["batch_size=256,1024", "optimizer.lr=0.1,0.4"]) == (
        ("batch_size=256", "optimizer.lr=0.1"),
        ("batch_size=256", "optimizer.lr=0.4"),
        ("batch_size=1024", "optimizer.lr=0.1"),
        ("batch_size=1024", "optimizer.lr=0.4"),
    )
    assert parse_axes([]) == ((),)


def test_commas_in_brackets_and_quotes_belong_to_a_value():
    given = "model.args={layers: [1, 1]},{layers: [2, 2]}"
    assert parse_axes([given]) == (
        ("model.args={layers: [1, 1]}",),
        ("model.args={layers: [2, 2]}",),
    )
    assert parse_axes(["name='a,b',c"]) == (("name='a,b'",), ("name=c",))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["batch_size"], "takes key=value,value"),
        (["batch_size=1,,2"], "has an empty value"),
        (["batch_size=1,1"], "names 1 twice"),
        (["batch_size=1", "batch_size=2"], "has batch_size twice"),
    ],
)
def test_bad_axes_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        parse_axes(given)


def test_devices_are_gpus_by_number_or_cpus_by_count():
    assert parse_devices("0,1,cuda:3") == ("cuda:0", "cuda:1", "cuda:3")
    assert parse_devices("cpu,cpu") == ("cpu", "cpu")


@pytest.mark.parametrize("text", ["", "gpu", "cpu,0", "-1", "0,0", "0,cuda:0"])
def test_bad_devices_are_refused(text):
    with pytest.raises(ValueError, match="--devices is"):
        parse_devices(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("90s", 90), ("1h30m", 5400), ("1h0m5s", 3605)]
)
def test_time_limits_have_units(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "0s", "-5m", "m30", "1.5h", "5m1h"])
def test_bad_time_limits_are_refused(text):
    with pytest.raises(ValueError, match=r"--time-limit is .* allowed: hours, minutes"):
        parse_time_limit(text)


def test_looks_increase_from_two_seeds_on_and_end_at_all_of_them():
    assert parse_looks("4, 8,16", None) == parse_looks("4,8,16", 16) == (4, 8, 16)
    for text in ("4", "8,4", "1,4", "4,4", "4,x", ""):
        with pytest.raises(ValueError, match=r"--looks is .* as in --looks 4,8,16"):
            parse_looks(text, None)
    with pytest.raises(ValueError, match="--looks 4,8 ends at 8 seeds, but --seeds gives 6"):
        parse_looks("4,8", 6)


@pytest.mark.parametrize("points", [0.0, -1.0, 100.0, float("nan")])
def test_a_margin_that_is_no_loss_is_refused(points):
    assert parse_margin(0.5) == 0.005
    with pytest.raises(ValueError, match=r"--margin is .* as in --margin 0.5"):
        parse_margin(points)
