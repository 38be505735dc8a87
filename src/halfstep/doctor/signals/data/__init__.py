"""Signals about the data: samples, their order, their targets and their size."""
