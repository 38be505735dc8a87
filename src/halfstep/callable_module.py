"""Makes a package callable: `halfstep.train("digits")`, although `halfstep.train` is a package.

A package and a function of one name cannot both be an attribute of `halfstep`, because the import
system sets the attribute to the package.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class CallableModule(ModuleType):
    """A module that can be called like a function, with the function's signature and docstring.

    `inspect.signature`, and with it `help` and editors, read `__wrapped__`.
    """

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*args, **kwargs)


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Make a call of the module `name`, which is being imported, a call of `function`."""
    module = sys.modules[name]
    # In a class of its own, because `help` would list an attribute of the module.
    wrapped = {"__wrapped__": staticmethod(function)}
    module.__class__ = type(CallableModule.__name__, (CallableModule,), wrapped)
    module.__doc__ = function.__doc__
