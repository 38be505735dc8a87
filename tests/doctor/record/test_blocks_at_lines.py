"""Statements and functions are found by their lines, without a walk through the file."""

import textwrap

import pytest

from halfstep.doctor.record.blocks import begins, function_at
from halfstep.doctor.record.source import statement


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        textwrap.dedent("""\
            @first
            @second(
                1)
            def decorated(x):
                if x: return 1
                return (
                    x + 2)
            """)
    )
    return str(path)


def test_a_function_is_found_by_the_line_of_its_first_decorator(file):
    assert function_at(file, 1, "decorated").lineno == 4
    assert function_at(file, 1, "other") is None
    assert function_at(file, 4, "decorated") is None


def test_a_statement_is_found_by_any_of_its_lines(file):
    assert begins((file, 7, "decorated"))[1] == 6
    assert statement((file, 7, "decorated")) == "return (\n    x + 2)"
