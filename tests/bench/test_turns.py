import pytest

from halfstep.bench.turns import take_turns


def test_settings_take_turns_within_each_round_and_each_is_told(console):
    turns = []

    def measure(setting):
        turns.append(setting)
        return len(turns)

    found = take_turns(
        "ab", 3, measure, label="setting {}".format, write="{} images".format, console=console
    )
    assert "".join(turns) == "ababab"
    assert found == [[1, 3, 5], [2, 4, 6]]
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("[1/6] round 1 of 3, setting a: 1 images, about ")
    assert lines[-1] == "[6/6] round 3 of 3, setting b: 6 images"


def test_an_interruption_leaves_the_line_and_comes_through(console):
    def measure(setting):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_turns("a", 1, measure, label=str, write=str, console=console)
    assert console.file.getvalue().endswith("\n")
