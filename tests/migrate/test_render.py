"""Lines of a program that change do so alone; all others are copied byte for byte."""

import ast

import pytest

from halfstep.migrate import migrate
from halfstep.migrate.program.render import Edits, Region, rendered
from halfstep.migrate.program.source import Source

BLOCK = '''\
def f(x):
    # first
    a = """one
  two"""  # kept
    if x: b(a); c()
    return a
'''


def statements(source):
    return source.files[0].module.body[0].body


def test_without_changes_it_is_the_same():
    source = Source(BLOCK)
    assert rendered(source, Edits()) == BLOCK


def test_lines_inside_a_string_are_not_indented():
    source = Source(BLOCK)
    first = statements(source)[0]
    edits = Edits(regions={first: Region("with y:", first)})
    after = rendered(source, edits)
    assert '    with y:\n        a = """one\n  two"""  # kept\n    if x' in after
    ast.parse(after)


def test_statements_behind_a_colon_get_lines_of_their_own():
    source = Source(BLOCK)
    inner = statements(source)[1].body
    edits = Edits(replaced={inner[1]: ["d()", "e()"]})
    assert "    if x:\n        b(a)\n        d()\n        e()\n" in rendered(source, edits)


def test_a_suite_that_loses_all_its_statements_passes():
    source = Source(BLOCK)
    inner = statements(source)[1].body
    after = rendered(source, Edits(replaced={inner[0]: [], inner[1]: []}))
    assert "    if x:\n        pass\n" in after


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_ends_of_lines_and_a_byte_order_mark_stay(ends, mark):
    text = (
        "from apex import amp\nm, o = amp.initialize(m, o)\nwhile True:\n    loss = m(x)\n"
        "    o.zero_grad()\n    with amp.scale_loss(loss, o) as s:\n        s.backward()\n"
        "    o.step()\n"
    )
    after = migrate(mark + text.replace("\n", ends)).after
    assert after.startswith(f"{mark}from halfstep import Engine{ends}")
    assert after.count("\n") == after.count(ends)
    assert "engine.step()" in after


def test_a_difference_without_a_last_line_end_says_so():
    text = "from apex import amp\namp.state_dict()"
    assert migrate(text).diff("x").endswith("\n amp.state_dict()\n\\ No newline at end of file\n")
