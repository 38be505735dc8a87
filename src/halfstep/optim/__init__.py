"""Optimizers that torch does not have, and faster steps for torch's SGD on a CPU."""
