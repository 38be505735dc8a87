"""Rewrites the source of a program written for Apex's amp, comments and layout kept.

`migrate` turns it into a program on `halfstep.Engine` or on `torch.amp`. What has no counterpart
stays as it is, with the reason in a comment at the line. Nothing is run or imported.
"""

from halfstep.migrate.migration import TARGETS, Migration, migrate

__all__ = ["TARGETS", "Migration", "migrate"]
