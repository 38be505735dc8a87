"""`import apex` finds `halfstep.apex`, so that programs written for Apex run as they are.

`amp_C` and `apex_C`, which Apex compiled beside itself, are found as well.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec, spec_from_loader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_NAME = "apex"
_OURS = "halfstep.apex"
_FOUND = {_NAME: _OURS, "amp_C": f"{_OURS}.amp_C", "apex_C": f"{_OURS}.apex_C"}
"""By the first name of what a program imports, what it finds."""


class _Alias(MetaPathFinder, Loader):
    """Finds `apex.x` as the very module `halfstep.apex.x`: one state under both names.

    What is missing says so by its name; it is a ModuleNotFoundError, which programs expect.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in _FOUND:
            return None
        try:
            found = find_spec(_ours(fullname))
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: halfstep.apex, which stands in for Apex, does not "
                "have it; it needs NVIDIA's own Apex"
            )
        return spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_ours(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Importing it under the other name has replaced its spec; it goes on being ours.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
        # Were these found one by one, each would be bound in its package anew, over what the
        # package has under its name: `amp._amp_state` is the state, not the module that holds it.
        for name in [name for name in sys.modules if name.startswith(f"{_OURS}.")]:
            sys.modules.setdefault(_NAME + name.removeprefix(_OURS), sys.modules[name])


def _ours(name: str) -> str:
    root, dot, rest = name.partition(".")
    return f"{_FOUND[root]}{dot}{rest}"


_alias = _Alias()


def install() -> None:
    """Let `import apex`, `from apex import amp` and the like find `halfstep.apex`.

    Another package of that name, installed or not, is not imported any more. Calling it again
    changes nothing; `uninstall` undoes it.

    Raises:
        RuntimeError: If another `apex` has been imported already.
    """
    ours = importlib.import_module(_OURS)
    there = sys.modules.get(_NAME, ours)
    if there is not ours:
        raise RuntimeError(
            f"apex has already been imported, from {getattr(there, '__file__', None)}; call "
            "halfstep.apex.install() before the first import of apex, or run the program with "
            "python -m halfstep.apex script.py"
        )
    if _alias not in sys.meta_path:
        sys.meta_path.insert(0, _alias)
    importlib.import_module(_NAME)


def uninstall() -> None:
    """Let `apex` be what it was; modules that a program holds already stay as they are."""
    if _alias in sys.meta_path:
        sys.meta_path.remove(_alias)
    for name in [name for name in sys.modules if name.partition(".")[0] in _FOUND]:
        if sys.modules[name].__name__.startswith(_OURS):
            del sys.modules[name]
