"""Layers that torch does not have, or does not have for every device."""
