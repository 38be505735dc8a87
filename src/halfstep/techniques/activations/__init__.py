"""Compressed activations; see `technique.py`."""

from halfstep.techniques.activations.technique import CompressedActivations

__all__ = ["CompressedActivations"]
