"""Makes `import apex` import `halfstep.apex`, so that programs written for Apex run unchanged.

The imports of `amp_C` and `apex_C`, which are compiled modules of Apex, are redirected as well.
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
"""Maps the first part of a module name in Apex to the module that replaces it."""


class _Alias(MetaPathFinder, Loader):
    """Imports `apex.x` as the same module object as `halfstep.apex.x`, so both share their state.

    A missing module raises a ModuleNotFoundError, because programs catch that, with its name.
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
        # The import under the name `apex.x` has replaced the module's spec: restore the original.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
        # Register all modules at once. A later import of one of them as `apex.x.y` would set the
        # attribute `y` of the package to the module. But `amp._amp_state` must stay the state, not
        # become the module of the same name.
        for name in [name for name in sys.modules if name.startswith(f"{_OURS}.")]:
            sys.modules.setdefault(_NAME + name.removeprefix(_OURS), sys.modules[name])


def _ours(name: str) -> str:
    root, dot, rest = name.partition(".")
    return f"{_FOUND[root]}{dot}{rest}"


_alias = _Alias()


def install() -> None:
    """Make `import apex`, `from apex import amp` and similar imports use `halfstep.apex`.

    An installed package `apex` is then not imported any more. Calling `install` again changes
    nothing. `uninstall` undoes it.

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
    """Undo `install`; modules that a program has already imported stay usable."""
    if _alias in sys.meta_path:
        sys.meta_path.remove(_alias)
    for name in [name for name in sys.modules if name.partition(".")[0] in _FOUND]:
        if sys.modules[name].__name__.startswith(_OURS):
            del sys.modules[name]
