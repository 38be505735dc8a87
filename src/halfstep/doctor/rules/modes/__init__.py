"""Layers run in another mode than the loop intends, training or evaluation."""
