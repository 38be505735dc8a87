"""Checkpoints of sharded models, which all processes write and read."""
