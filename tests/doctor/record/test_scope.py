"""Names that a line reads although they are not bound there, as running the program shows."""

from __future__ import annotations

import pytest

from halfstep.doctor.record.scope import unbound

PROGRAM = """import math
from os import path as places
def outer(model, *rest, key=1):
    total = 0
    for each in rest:
        total += each
    def inner():
        return total
    [one for one in rest]
    {line}
    late = 1
    return inner
class Kind:
    value = 1
    def method(self):
        return self.value
known = outer
"""
LINE = 10


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("math.floor(places.sep + model + key + total + len(rest))", set()),
        ("model.train(mode)", {"mode"}),
        ("late.step()", {"late"}),
        ("late = late.view(-1)", {"late"}),
        ("total = total.view(-1)", set()),
        ("known(Kind)", set()),  # of the file, in a function that runs later
        ("for group in rest: group.update(lr=key)", set()),
        ("(lambda batch: batch + value)(each)", {"value"}),
        ("with open(places) as file: file.read(model, other)", {"other"}),
        ("method(self)", {"method", "self"}),
    ],
)
def test_the_names_that_a_line_lacks(line, names) -> None:
    assert unbound(PROGRAM.format(line=line), {LINE}) == names


def test_outside_of_functions_a_name_must_be_bound_above() -> None:
    assert unbound("model.train()\nmodel = 1\n", {1}) == {"model"}
    assert unbound("model = 1\nmodel.train()\n", {2}) == set()


def test_a_file_that_is_not_valid_has_no_answer_and_a_star_may_bind_everything() -> None:
    assert unbound("def f(:\n", {1}) is None
    assert unbound("from torch import *\nnn.Linear(1, 2)\n", {2}) == set()
