"""Bundles: a failing step, saved as files that can be run again without the program."""
