"""`python -m halfstep.doctor script.py ...`, for launchers: `torchrun ... -m halfstep.doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

from halfstep.doctor.program import run_program
from halfstep.errors import UserError


def main(argv: list[str]) -> int:
    """Run a program under watch.

    Args:
        argv: The arguments after `python -m halfstep.doctor`.

    Returns:
        The program's exit code; 2 if there is nothing to run.
    """
    report, hold_back = None, False
    while argv[:1] in (["--report"], ["--hold-back"]):
        if argv[0] == "--hold-back":
            hold_back, argv = True, argv[1:]
        else:
            report, argv = Path(argv[1]) if len(argv) > 1 else None, argv[2:]
    try:
        return run_program(argv, report, hold_back=hold_back)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # a command line
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
