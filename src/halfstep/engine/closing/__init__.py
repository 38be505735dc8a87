"""The parts of the work when windows close, and of the work after it."""
