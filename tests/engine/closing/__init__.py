"""Tests of the step, and of the work after it."""
