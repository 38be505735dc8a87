"""When the times of a run are not meaningful, because other programs used its processor cores."""

from __future__ import annotations

DISTURBED = 0.1
"""Share of waiting for a core, 0 to 1, from which on the step times of a run are not meaningful."""
