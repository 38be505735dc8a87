"""Tests of the predicted time and memory of a step."""
