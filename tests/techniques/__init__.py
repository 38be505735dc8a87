"""Tests of the techniques, one file each."""
