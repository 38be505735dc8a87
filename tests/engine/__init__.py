"""Tests of the engine: one step under any recipe, against references written by hand."""
