"""`python -m halfstep.apex script.py ...`: runs a program with `halfstep.apex` as its `apex`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from halfstep.apex.install import install

USAGE = "usage: python -m halfstep.apex (script.py | -m module) [arguments of the program]"


def main(argv: list[str]) -> int:
    """Run a script or a module as `python` would.

    Args:
        argv: The command-line arguments after `python -m halfstep.apex`.

    Returns:
        0, or 2 if there is nothing to run. A SystemExit of the program is passed on.
    """
    if argv in ([], ["-h"], ["--help"]):
        print(USAGE, file=sys.stdout if argv else sys.stderr)  # a command line
        return 0 if argv else 2
    if argv[0] == "-m":
        if len(argv) == 1:
            print(USAGE, file=sys.stderr)  # noqa: T201  # a command line
            return 2
        install()
        sys.argv = argv[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return 0
    if not Path(argv[0]).is_file():
        print(f"error: there is no file {argv[0]}; {USAGE}", file=sys.stderr)  # noqa: T201
        return 2
    install()
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
