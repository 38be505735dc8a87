"""`python -m halfstep`: the same program as the `halfstep` command."""

from __future__ import annotations

import sys

from halfstep.cli import main

if __name__ == "__main__":
    sys.exit(main())
