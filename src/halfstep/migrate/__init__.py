"""Rewrites the source of a program written for Apex's amp, and keeps its comments and layout.

The new program uses `halfstep.Engine` or `torch.amp`. Code that has no counterpart there stays
unchanged, and a comment above it gives the reason. `migrate` neither runs nor imports the program.
"""

from halfstep.migrate.deprecated import modernized
from halfstep.migrate.migration import TARGETS, Migration, migrate
from halfstep.migrate.project import Project, migrate_project

__all__ = ["TARGETS", "Migration", "Project", "migrate", "migrate_project", "modernized"]
