"""Layers that torch has not, or not for every device."""
