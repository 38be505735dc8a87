import pytest

from halfstep.compare.grid import changes, parse_recipes, parse_seeds


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


def test_cells_run_all_recipes_of_one_seed_before_the_next(make_grid):
    cells = make_grid(("fp32", "fp16"), (4, 5)).cells
    assert [cell.label for cell in cells] == [
        "fp32 seed 4",
        "fp16 seed 4",
        "fp32 seed 5",
        "fp16 seed 5",
    ]
    assert [cell.directory.name for cell in cells][:2] == ["fp32-seed4", "fp16-seed4"]


def test_fingerprint_changes_with_every_setting_and_with_nothing_else(make_grid):
    first, again, other = make_grid(), make_grid(), make_grid(lr=0.2)
    assert [cell.fingerprint for cell in first.cells] == [cell.fingerprint for cell in again.cells]
    fingerprints = {cell.fingerprint for cell in (*first.cells, *other.cells)}
    assert len(fingerprints) == 6


def test_changes_name_keys_with_their_section():
    before = {"optimizer": {"lr": 0.1, "name": "sgd"}, "epochs": 3}
    now = {"optimizer": {"lr": 0.2, "name": "sgd"}, "epochs": 3, "device": "cpu"}
    assert changes(before, now) == ['device: not set -> "cpu"', "optimizer.lr: 0.1 -> 0.2"]
