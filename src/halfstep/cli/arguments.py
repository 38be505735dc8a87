"""Two freedoms on the command line that its parser does not have.

`--options a=1 b=2` takes several values, as in the field; `--debug` may stand anywhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


def normalise(argv: Sequence[str]) -> list[str]:
    """Return the arguments as the parser takes them; see the module's docstring."""
    arguments = list(argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head, tail = arguments[:end], arguments[end:]
    debug = ["--debug"] if "--debug" in head else []
    return debug + repeat_options([each for each in head if each != "--debug"]) + tail


def repeat_options(argv: Sequence[str]) -> list[str]:
    """Write `--options a=1 b=2` as `--options a=1 --options b=2`.

    Values are what follows the flag and looks like `key=value`; the first argument that does not is
    left for the parser, so that positional arguments may follow.
    """
    repeated: list[str] = []
    in_options = False
    for index, argument in enumerate(argv):
        follows_flag = index > 0 and argv[index - 1] == "--options"
        if argument == "--options" or argument.startswith("--options="):
            in_options = True
        elif in_options and not follows_flag:
            if _ASSIGNMENT.match(argument):
                repeated.append("--options")
            else:
                in_options = False
        repeated.append(argument)
    return repeated
