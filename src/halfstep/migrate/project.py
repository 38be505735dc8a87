"""A project of several files: which of them form a program, and the migration of each program.

A program is a file that no other file imports, with those of its imports that use amp or lead to a
file that does. Its files are rewritten together or not at all. Of several programs that share all
files that train, one is analysed. Programs may share files: then the shared files must become the
same in all of these programs.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.migrate.migration import leave, migrate_program
from halfstep.migrate.program.layout import Layout
from halfstep.migrate.program.names import last_name
from halfstep.migrate.program.render import COMMENT
from halfstep.migrate.program.source import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.migrate.migration import Migration

TOGETHER = "{} of this program also use{} amp; migrate all together: halfstep migrate {}"
SHARED = "{} is also part of the program {}, which needs other changes in it; both are unchanged"
_AMP = re.compile(r"\bapex\b|\bamp_C\b|(?<!cuda\.)(?<!torch\.)\bamp\b")
_TRAINS = re.compile(r"\.(step|backward|zero_grad)\(|clip_grad")
_NATIVE = re.compile(r"^\s*from torch(\.cuda)? import .*\bamp\b", re.MULTILINE)


class Project:
    """The files of a project.

    Args:
        texts: Their texts by path.

    Attributes:
        broken: Maps each file that is not valid Python to the error.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.broken: dict[str, UserError] = {}
        self._initializing: set[str] = set()
        self._scaling: set[str] = set()
        layout = Layout(texts)
        self._imports = {name: self._imported(name, text, layout) for name, text in texts.items()}

    def _imported(self, name: str, text: str, layout: Layout) -> set[str]:
        """Return the files that a file imports."""
        try:
            tree = parsed(text.removeprefix("\ufeff"), name)
        except UserError as error:
            self.broken[name] = error
            return set()
        nodes = [*ast.walk(tree)]
        called = [node for node in nodes if isinstance(node, ast.Call)]
        if any(last_name(call.func) == "initialize" and _has_optimizers(call) for call in called):
            self._initializing.add(name)
        if any(last_name(call.func) == "scale_loss" for call in called):
            self._scaling.add(name)
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        found = {found.name for node in imports for _, found in layout.imports(name, node)}
        packages = {
            str(folder / "__init__.py") for each in found for folder in PurePath(each).parents
        }
        return (found | (packages & self.texts.keys())) - {name}

    def uses_amp(self, name: str) -> bool:
        """Tell whether the text of a file contains a name that may refer to Apex's amp."""
        return name in self._using

    @cached_property
    def _using(self) -> set[str]:
        return {
            name
            for name, text in self.texts.items()
            if _AMP.search(text) and ("apex" in text or not _NATIVE.search(text))
        }

    def reached(self, names: Iterable[str]) -> set[str]:
        """Return some files and all files that they import, directly or through others."""
        return _closure(names, self._imports)

    @cached_property
    def programs(self) -> list[list[str]]:
        """The programs that use amp, each with its first file first."""
        importers: dict[str, set[str]] = {name: set() for name in self.texts}
        for name, imported in self._imports.items():
            for each in imported:
                importers[each].add(name)
        using, leading = self._using, _closure(self._using, importers)
        first = [name for name in sorted(leading) if importers[name] <= self.reached([name])]
        found = self._programs(first, leading)
        covered = {name for each in found for name in each}
        return found + [[name] for name in sorted(using - covered)]

    def _programs(self, first: Iterable[str], leading: set[str]) -> list[list[str]]:
        """Return the programs of some first files that train; of those that train alike, one."""
        found: dict[frozenset[str], list[str]] = {}
        training = {name for name in leading if _TRAINS.search(self.texts[name])} | self._using
        for start in sorted(first, key=lambda name: ("train" not in name, name)):
            name, reached = start, self.reached([start]) & leading
            core = reached & (self._initializing | self._scaling)
            script = next(iter(core)) if len(core) == 1 else ""
            if script and "__main__" in self.texts[script]:  # that others import only for a part
                name, reached = script, self.reached([script]) & leading
            if core & self._initializing and core & self._scaling:
                files = [name, *sorted(reached - {name})]
                found.setdefault(frozenset(training.intersection(files)), files)
        return list(found.values())


def migrate_project(project: Project, to: str, names: Iterable[str]) -> list[Migration]:
    """Rewrite the programs that consist of some files of a project.

    Args:
        project: The project.
        to: "halfstep" for `halfstep.Engine`, "torch" for `torch.amp`.
        names: The paths of the files to rewrite. A program that also needs other files of the
            project is left unchanged, with a note that names them.

    Returns:
        The files of all programs that use amp, and the new files that they need.

    Raises:
        UserError: If `to` is not a target, or a file that uses amp is not valid Python.
    """
    texts = {name: project.texts[name] for name in names}
    programs = [each for each in project.programs if not texts.keys().isdisjoint(each)]
    done: list[list[Migration]] = []
    for program in programs:
        own = {name: texts[name] for name in program if name in texts}
        missing = [name for name in program if name not in texts and project.uses_amp(name)]
        if missing:
            command = " ".join(sorted({*own, *missing}))
            verb = "s" if len(missing) == 1 else ""
            done.append(leave(own, TOGETHER.format(" and ".join(missing), verb, command)))
        else:
            done.append(migrate_program(own, to))
    _agree(done, programs, texts)
    files: dict[str, Migration] = {}
    for each in (migration for migrations in done for migration in migrations):
        seen = files.get(each.name, each)
        longer = max(seen, each, key=lambda one: len(one.after))  # of equal code, with more notes
        files[each.name] = replace(longer, notes=tuple(sorted({*seen.notes, *each.notes})))
    return list(files.values())


def _agree(
    done: list[list[Migration]], programs: list[list[str]], texts: Mapping[str, str]
) -> None:
    """Leave programs that share a file unchanged if it did not become the same in both."""
    changed = True
    while changed:
        changed = False
        for at, first in enumerate(done):
            for other, second in enumerate(done):
                codes = {each.name: _code(each) for each in second}
                odd = next((m for m in first if codes.get(m.name, _code(m)) != _code(m)), None)
                if odd is None:
                    continue
                changed = True
                for one, two in ((at, other), (other, at)):
                    own = {name: texts[name] for name in programs[one] if name in texts}
                    done[one] = leave(own, SHARED.format(odd.name, programs[two][0]))


def _has_optimizers(call: ast.Call) -> bool:
    """Tell whether a call of `amp.initialize` gets more than models."""
    names = {keyword.arg for keyword in call.keywords}
    return len(call.args) > 1 or not names.isdisjoint({"optimizers", None})


def _code(migration: Migration) -> list[str]:
    """Return the lines of a rewritten file without notes."""
    return [line for line in migration.after.splitlines() if COMMENT not in line]


def _closure(names: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    found = set(names)
    new = set(found)
    while new:
        new = {each for name in new for each in edges[name]} - found
        found |= new
    return found
