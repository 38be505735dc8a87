"""Each statement gets a line of its own, and lines that did not change are joined again."""

import ast

import pytest

from halfstep.migrate import migrate
from halfstep.migrate.program.render import Edits, rendered
from halfstep.migrate.program.source import Source

from .conftest import FIXTURES

SHARED = {
    "a(); b()": ["a()", "b()"],
    "a() ;b();": ["a()", "b();"],
    "if x: a(); b()  # c": ["if x:", "    a()", "    b()  # c"],
    "if x: a()\nelif y: b()\nelse: c()": [
        *("if x:", "    a()", "elif y:", "    b()", "else:", "    c()")
    ],
    "if x:\n\ta(); b()\nwhile y: c()": ["if x:", "\ta()", "\tb()", "while y:", "\tc()"],
    "try: a()\nexcept E: b()\nfinally: c()": [
        *("try:", "    a()", "except E:", "    b()", "finally:", "    c()")
    ],
    "match x:\n  case 1: a(); b()": ["match x:", "  case 1:", "      a()", "      b()"],
    "if x: \\\n   a(); \\\n b()": ["if x:", "    a()", "    b()"],
    "def f(x,\n      y): return x": ["def f(x,", "      y):", "    return x"],
    "a = f('é'); b = f(\n  1); c = 2": ["a = f('é')", "b = f(", "  1)", "c = 2"],
    'a = """x; y\n z"""; b = lambda: 1': ['a = """x; y', ' z"""', "b = lambda: 1"],
    "@a\ndef f(): pass\n\\\nb()": ["@a", "def f():", "    pass", "\\", "b()"],
}


@pytest.mark.parametrize("text", SHARED)
def test_each_statement_gets_a_line_of_its_own(text):
    assert Source(text).lines == SHARED[text]


@pytest.mark.parametrize("text", SHARED)
def test_a_program_that_does_not_change_keeps_its_lines(text):
    source = Source(text)
    assert ast.dump(source.files[0].module) == ast.dump(ast.parse(text))
    assert rendered(source, Edits()) == text


def test_numbers_are_those_of_the_given_lines():
    source = Source("a = [\n1]; b = 2\nif x: c(); d()\ne()")
    assert list(map(source.number, range(1, 8))) == [1, 2, 2, 3, 3, 3, 4]


def test_only_lines_with_a_changed_statement_are_split():
    source = Source("a(); b()\nif x: c(); d()\nif y: e()\nf(); g()")
    nodes = [each for each in ast.walk(source.tree) if isinstance(each, ast.Expr)]
    statements = {ast.unparse(each): each for each in nodes}
    edits = Edits(replaced={statements["d()"]: ["new()"]}, notes={statements["g()"]: ["why"]})
    assert rendered(source, edits).splitlines() == [
        *("a(); b()", "if x:", "    c()", "    new()", "if y: e()"),
        *("# halfstep migrate: why", "f(); g()"),
    ]


def test_a_changed_expression_does_not_split_its_line():
    source = Source("a(); b(c)\n")
    (name,) = (each for each in ast.walk(source.tree) if getattr(each, "id", "") == "c")
    assert rendered(source, Edits(expressions={name: "d"})) == "a(); b(d)\n"


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.py")), ids=lambda path: path.stem)
def test_each_fixture_keeps_its_lines(path):
    text = path.read_text()
    assert rendered(Source(text), Edits()) == text


def test_notes_have_the_line_numbers_of_the_given_program():
    text = "import torch; from apex import amp\na = 1; amp.state_dict()\n"
    (note,) = migrate(text).notes
    assert note.line == 2
    assert migrate(text).before == text
    assert f"# halfstep migrate: {note.reason}\na = 1; amp.state_dict()\n" in migrate(text).after
