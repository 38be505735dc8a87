"""The number that a line uses is changed where the program sets it."""

import pytest

from halfstep.doctor.record.constant import line_with_other_number


@pytest.mark.parametrize(
    ("program", "line", "number", "by", "changed"),
    [
        ("x = 1\nnorm = x + 1e-8\n", 2, 1e-8, "1e-4", "norm = x + 1e-4"),
        ("def f(x, eps=1e-8):\n    return x + eps\n", 2, 1e-8, "1e-4", "def f(x, eps=1e-4):"),
        ("LOW = -1e9\ny = m * LOW\n", 2, -1e9, "-1e4", "LOW = -1e4"),
        ("LOW = 1e9\ny = m * LOW\n", 2, -1e9, "-1e4", None),
        ("a: float = 1e-8\ny = x + a\n", 2, 1e-8, "1e-4", "a: float = 1e-4"),
        ("g(eps=1e-8)\ndef g(x, eps=1e-8):\n    return x + eps\n", 3, 1e-8, "1e-4", None),
        ("def f(eps=1e-8): 0\ndef g(x, eps):\n    return x + eps\n", 3, 1e-8, "1e-4", None),
        ("g(x, eps=1e-8)\ndef g(x, eps):\n    return x + eps\n", 3, 1e-8, "1", "g(x, eps=1)"),
        ("# 中\u2028文\n\x0c\nz = 0\ny = x + 1e-8\n", 4, 1e-8, "1e-4", "y = x + 1e-4"),
        ("y = x +\n", 1, 1e-8, "1e-4", None),
    ],
)
def test_the_line_that_sets_a_number_is_changed(tmp_path, program, line, number, by, changed):
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8", newline="")
    found = line_with_other_number((str(path), line, "f"), number, by)
    assert (found and found[1]) == changed
