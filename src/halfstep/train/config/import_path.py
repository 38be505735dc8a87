"""Imports a function of the user by its path: "package.module:function".

The working directory is on the import path too, so that a file there can be used. Importing runs
the code of the module, which the user requests by naming it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError, closest, failing

if TYPE_CHECKING:
    from collections.abc import Callable


def load(path: str, field: str) -> Callable[..., Any]:
    """Return the function or class at an import path, which may start with "import:".

    Errors name the config field `field` that has the path.

    Raises:
        UserError: If the module cannot be imported or has no such function.
    """
    path = path.removeprefix("import:")
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise UserError(
            f"{field} is 'import:{path}'; allowed: import:package.module:function, such as "
            "import:my_models:small"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    with failing(f"{field}: cannot import {module_name!r}"):
        module = importlib.import_module(module_name)
    target = getattr(module, name, None)
    if not callable(target):
        known = [attribute for attribute in vars(module) if callable(getattr(module, attribute))]
        raise UserError(
            f"{field}: {module.__name__} has no function {name!r}{closest(name, known)}"
        )
    return target  # type: ignore[no-any-return]  # whatever callable the user's module has
