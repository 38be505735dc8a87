"""Everything public has a real signature and a documentation, also before torch is imported."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import pytest

import halfstep

CALLABLE = [name for name in halfstep.__all__ if callable(getattr(halfstep, name))]
JUSTIFIED = {"Recipe": "settings"}
"""Variadic parameters: the fields of recipes, to which a new part of a recipe adds one."""
WITHOUT_TORCH = [
    "compare",
    "LossScale",
    "Recipe",
    "evaluate",
    "predict",
    "recipe",
    "recipes",
    "train",
]


@pytest.mark.parametrize("name", CALLABLE)
def test_a_signature_names_its_parameters_and_the_docstring_explains_them(name):
    public = getattr(halfstep, name)
    text = inspect.getdoc(public)
    assert text, "has no docstring"
    if inspect.isclass(public) and issubclass(public, BaseException):
        return  # is raised by halfstep, not called by users
    parameters = inspect.signature(public).parameters.values()
    variadic = [
        each.name for each in parameters if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    assert variadic == [JUSTIFIED[name]] if name in JUSTIFIED else not variadic
    if not parameters:
        return
    assert "Args:" in text or "Attributes:" in text
    for each in parameters:
        assert f"\n    {each.name}: " in text, f"{each.name} is not explained"
        assert each.annotation is not each.empty, f"{each.name} has no type"


@pytest.mark.parametrize("name", CALLABLE)
def test_help_shows_the_signature(name):
    public = getattr(halfstep, name)
    text = pydoc.render_doc(public, renderer=pydoc.plaintext)
    if inspect.isclass(public) and issubclass(public, BaseException):
        return
    for each in inspect.signature(public).parameters:
        assert each in text


PROGRAM = f"""
import inspect, pydoc, sys
import halfstep
for name in {WITHOUT_TORCH}:
    public = getattr(halfstep, name)
    inspect.signature(public), inspect.getdoc(public)
    pydoc.render_doc(public)
assert set(halfstep.__all__) <= set(dir(halfstep))
print([each for each in ("torch", "pydantic", "rich", "typer") if each in sys.modules])
try:
    halfstep.train("digit")
except ValueError as error:
    assert "did you mean 'digits'" in str(error)
print("torch" in sys.modules)
"""


def test_signatures_and_mistakes_in_a_config_need_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\nFalse\n", "")


def test_a_package_that_is_called_stays_what_it_is_when_its_modules_are_imported():
    import halfstep.compare.program
    import halfstep.recipe.table
    import halfstep.train.python

    for package, function in (
        (halfstep.compare, halfstep.compare.program.compare),
        (halfstep.train, halfstep.train.python.train),
        (halfstep.recipe, halfstep.recipe.table.recipe),
    ):
        assert inspect.ismodule(package)
        assert inspect.signature(package) == inspect.signature(function)
        assert inspect.getdoc(package) == inspect.getdoc(function)
