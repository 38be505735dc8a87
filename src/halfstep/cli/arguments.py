"""Three forms of arguments that the parser of the command line does not accept itself.

`--options a=1 b=2` and `--grid a=1,2 b=3,4` take several values; `--debug` may appear anywhere;
`--resume` alone means `--resume auto`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAKE_SEVERAL = ("--options", "--grid")
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


def normalise(argv: Sequence[str]) -> list[str]:
    """Return the arguments in the forms that the parser accepts; see the module's docstring."""
    arguments = list(argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head, tail = arguments[:end], arguments[end:]
    debug = ["--debug"] if "--debug" in head else []
    head = [argument for argument in head if argument != "--debug"]
    return debug + repeat_options(fill_in_resume(head)) + tail


def fill_in_resume(argv: Sequence[str]) -> list[str]:
    """Write a `--resume` without a value as `--resume auto`."""
    filled: list[str] = []
    for index, argument in enumerate(argv):
        filled.append(argument)
        following = argv[index + 1] if index + 1 < len(argv) else "-"
        if argument == "--resume" and following.startswith("-"):
            filled.append("auto")
    return filled


def repeat_options(argv: Sequence[str]) -> list[str]:
    """Write `--options a=1 b=2` as `--options a=1 --options b=2`.

    The values are the arguments after the flag that look like `key=value`. The first other argument
    is left for the parser, so positional arguments may follow.
    """
    repeated: list[str] = []
    flag = ""
    for index, argument in enumerate(argv):
        follows_flag = index > 0 and argv[index - 1] in _TAKE_SEVERAL
        name = argument.partition("=")[0]
        if name in _TAKE_SEVERAL:
            flag = name
        elif flag and not follows_flag:
            if _ASSIGNMENT.match(argument):
                repeated.append(flag)
            else:
                flag = ""
        repeated.append(argument)
    return repeated
