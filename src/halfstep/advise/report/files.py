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
    chosen = {choice.gpu.key: choice.best.trial for choice in found.choices if choice.best}
    if not found.choices:
        chosen = dict(zip(["recipe"], found.recommended, strict=False))
    for name, trial in chosen.items():
        content[f"{name}.yaml"] = config(found, trial, directory / f"{name}.yaml")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, each in content.items():
            write_atomically(directory / name, each)
    except OSError as error:
        raise UserError(
            f"cannot write into {directory}: {error.strerror}; name another directory with --out"
        ) from error
    return list(content)


def config(found: Answer, trial: Trial, file: Path) -> str:
    """Return a recipe as YAML: a config based on the subject's config, or else only the recipe.

    Args:
        found: The answer.
        trial: The trial of the recipe.
        file: The file for which the text is meant; a comment names it.
    """
    assert found.advice is not None
    comments = [f"# {line}" for line in [trial.base, *reasons(trial, found.advice)]]
    values: dict[str, Any] = {}
    if found.subject.config is not None:
        name, options = found.subject.config
        shipped = name in files.shipped()
        values["base"] = name if shipped else str(files.find(name).resolve())
        values = files.merge(values, files.parse_options(options))
        values.pop("fp16", None)  # short for a recipe, which is set below
    else:
        comments.append(f'# in your own loop: Engine(model, optimizer, recipe="{file.as_posix()}")')
    values["recipe"] = trial.spec
    return "\n".join(comments) + "\n" + yaml_text.dump(values)
