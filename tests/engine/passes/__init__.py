"""Tests of forward and backward passes."""
