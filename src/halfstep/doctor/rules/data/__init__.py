"""Causes in the data: samples, their order, and how they are given to a model."""
