"""Records the calls of a loop, so that a step can be run again."""
