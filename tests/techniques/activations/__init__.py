"""Tests of compressed activations."""
