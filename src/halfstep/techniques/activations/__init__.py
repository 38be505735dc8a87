"""Compressed activations; see `technique.py`."""

from halfstep.techniques.activations.budget import BudgetedActivations
from halfstep.techniques.activations.technique import CompressedActivations

__all__ = ["BudgetedActivations", "CompressedActivations"]
