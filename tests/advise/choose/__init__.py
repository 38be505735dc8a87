"""Tests of the search for safe recipes and their exceptions."""
