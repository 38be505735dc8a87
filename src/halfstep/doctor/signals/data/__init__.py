"""Signals about the data: which samples a training uses, in which order, and what they look like."""
