"""Tests of the mechanisms, a folder each."""
