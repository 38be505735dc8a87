"""Compressed activations: tensors saved for the backward pass in a few bits per element."""

from halfstep.techniques.activations.budget import BudgetedActivations
from halfstep.techniques.activations.technique import CompressedActivations

__all__ = ["BudgetedActivations", "CompressedActivations"]
