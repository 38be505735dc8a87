"""The place of a line in the blocks of its file."""

from __future__ import annotations

import pytest

from halfstep.doctor.record.blocks import begins, ends, following, is_alone, loop, outermost

PROGRAM = """def fit(model, loader):
    for epoch in range(3):
        for batch in loader:
            loss = model(
                batch
            )
            if batch:
                model(batch)
            elif loss:
                model(loss)
        with evaluation():
            for batch in loader:
                model(batch)
        print(epoch)
    for net in [model]:
        for batch in loader:
            net(batch)
"""


@pytest.fixture
def at(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return lambda line: (str(file), line, "fit")


def test_a_statement_of_several_lines_begins_above_and_ends_below(at) -> None:
    assert begins(at(5)) == at(4)
    assert ends(at(5)) == 6


def test_nothing_stands_before_an_elif(at) -> None:
    assert begins(at(9)) == at(7)
    assert begins(at(10)) == at(10)


def test_the_innermost_loop_without_the_evaluation(at) -> None:
    assert loop(at(5), {"model"}) == at(3)
    assert loop(at(5), {"model"}, [at(13)]) == at(3)
    assert loop(at(5), {"model"}, [at(8)]) == at(4)
    assert loop(at(2), {"model"}) == at(2)


def test_a_loop_that_binds_the_name_is_not_before_it(at) -> None:
    assert loop(at(17), {"net"}) == at(16)
    assert loop(at(17), {"batch"}) == at(17)
    assert outermost(at(17), {"net"}) == at(16)


def test_the_outermost_block_without_the_training(at) -> None:
    assert outermost(at(13), {"model"}) == at(2)
    assert outermost(at(13), {"model"}, [at(5)]) == at(11)


def test_the_next_statement_of_a_block(at) -> None:
    assert following(at(11)) == at(14)
    assert following(at(14)) is None
    assert following(at(4)) == at(7)


def test_a_file_that_is_not_there_has_no_blocks() -> None:
    mark = ("missing.py", 3, "fit")
    assert (begins(mark), loop(mark, set()), following(mark), ends(mark)) == (None, None, None, 0)


def test_a_statement_may_be_the_only_one_of_its_block(at) -> None:
    assert is_alone(at(8))
    assert is_alone(at(17))
    assert not is_alone(at(5))
    assert not is_alone(at(14))
