import pytest

from halfstep.cli.arguments import normalise, repeat_options


@pytest.mark.parametrize(
    ("typed", "repeated"),
    [
        ("--options a=1 b.c=2", "--options a=1 --options b.c=2"),
        ("--options a=1 --options b=2", "--options a=1 --options b=2"),
        ("--options=a=1 b=2", "--options=a=1 --options b=2"),
        ("--options a=1 --tag x b=2", "--options a=1 --tag x b=2"),
        ("--options a=1 digits", "--options a=1 digits"),
        ("--options a=1 digits b=2", "--options a=1 digits b=2"),
        ("--options bad b=2", "--options bad --options b=2"),
        ("digits a=1", "digits a=1"),
        ("--options", "--options"),
    ],
)
def test_values_after_options_each_get_the_flag(typed, repeated):
    assert repeat_options(typed.split()) == repeated.split()


def test_values_with_spaces_and_equal_signs_stay_whole():
    typed = ["--options", "a={x: [1, 2]}", "b=c=d e"]
    assert repeat_options(typed) == ["--options", "a={x: [1, 2]}", "--options", "b=c=d e"]


def test_debug_may_stand_anywhere_but_not_behind_the_end_of_options():
    assert normalise(["train", "x", "--debug"]) == ["--debug", "train", "x"]
    assert normalise(["train", "--", "--debug"]) == ["train", "--", "--debug"]
    assert normalise(["--options", "a=1", "--", "b=2"]) == ["--options", "a=1", "--", "b=2"]


@pytest.mark.parametrize(
    ("typed", "filled"),
    [
        ("train x --resume", "train x --resume auto"),
        ("train x --resume --quiet", "train x --resume auto --quiet"),
        ("train x --resume runs/x", "train x --resume runs/x"),
        ("train x --resume=runs/x", "train x --resume=runs/x"),
    ],
)
def test_resume_alone_means_auto(typed, filled):
    assert normalise(typed.split()) == filled.split()


def test_a_grid_takes_several_values_as_options_do():
    given = ["--grid", "a=1,2", "b=3", "--options", "c=4", "d=5", "--tag", "x"]
    flags = ["--grid", "a=1,2", "--grid", "b=3", "--options", "c=4", "--options", "d=5"]
    assert repeat_options(["compare", *given]) == ["compare", *flags, "--tag", "x"]
