import sys

import pytest

from halfstep.errors import UserError
from halfstep.train.config.import_path import load


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Work in a directory that holds a module."""
    (tmp_path / "mine_for_tests.py").write_text("def small():\n    return 3\n\nlarge = 4\n")
    (tmp_path / "broken_for_tests.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine_for_tests", None)


def test_function_of_a_file_in_the_working_directory_is_found(beside):
    assert load("mine_for_tests:small", "model.name")() == 3


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("mine_for_tests", "model.name is 'import:mine_for_tests'; allowed: import:package.module"),
        (":small", "allowed: import:package.module:function"),
        ("nowhere_at_all:f", "cannot import 'nowhere_at_all': ModuleNotFoundError"),
        ("broken_for_tests:f", "cannot import 'broken_for_tests': ZeroDivisionError"),
        ("mine_for_tests:smal", "has no function 'smal'; did you mean 'small'"),
        ("mine_for_tests:large", "has no function 'large'"),
    ],
)
def test_what_cannot_be_had_is_one_line(beside, path, said):
    with pytest.raises(UserError, match=said) as caught:
        load(path, "model.name")
    assert "\n" not in str(caught.value)
