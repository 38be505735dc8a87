"""The files of an answer: configs for `halfstep train`, JSON for programs, and a page.

advice.json    the complete answer
report.html    the page
h100_sxm.yaml  a config for each GPU, or recipe.yaml if no GPU was named
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep import yaml_text
from halfstep.advise.choose.show import reasons
from halfstep.advise.report.page import page
from halfstep.errors import UserError
from halfstep.files import json_text, write_atomically
from halfstep.train.config import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.trial import Trial

ADVICE = "advice.json"
REPORT = "report.html"


def write(directory: Path, found: Answer) -> list[str]:
    """Write an answer; each existing file of the same name is replaced atomically.

    Returns:
        The names of the files.

    Raises:
        UserError: If the directory cannot be written.
    """
    content = {ADVICE: json_text(found.as_json(), indent=1) + "\n", REPORT: page(found)}
    recipes = {
        choice.gpu.key: _of_trial(choice.best.trial, found)
        if choice.best
        else ([choice.reference.recipe], {"base": choice.reference.recipe})
        for choice in found.choices
        if choice.best or choice.reference.fits
    }
    if not found.choices and found.recommended:
        recipes = {"recipe": _of_trial(found.recommended[0], found)}
    for name, (comments, spec) in recipes.items():
        content[f"{name}.yaml"] = _config(found, comments, spec, directory / f"{name}.yaml")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, each in content.items():
            write_atomically(directory / name, each)
    except OSError as error:
        raise UserError(
            f"cannot write into {directory}: {error.strerror}; name another directory with --out"
        ) from error
    return list(content)


def _of_trial(trial: Trial, found: Answer) -> tuple[list[str], Mapping[str, Any]]:
    """Return the name and the reasons of a trial, and its recipe."""
    assert found.advice is not None
    return [trial.base, *reasons(trial, found.advice)], trial.spec


def _config(found: Answer, said: Sequence[str], spec: Mapping[str, Any], file: Path) -> str:
    """Return a recipe as YAML: a config based on the subject's config, or else only the recipe.

    Args:
        found: The answer.
        said: The name of the recipe and the reasons for it, as comments.
        spec: The recipe.
        file: The file for which the text is meant; a comment names it.
    """
    comments = [f"# {line}" for line in said]
    values: dict[str, Any] = {}
    if found.subject.config is not None:
        name, options = found.subject.config
        shipped = name in files.shipped()
        values["base"] = name if shipped else str(files.find(name).resolve())
        values = files.merge(values, files.parse_options(options))
        values.pop("fp16", None)  # short for a recipe, which is set below
    else:
        comments.append(f'# in your own loop: Engine(model, optimizer, recipe="{file.as_posix()}")')
    values["recipe"] = dict(spec)
    return "\n".join(comments) + "\n" + yaml_text.dump(values)
