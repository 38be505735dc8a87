"""Predicts which recipe suits a model and what it gains, before training and without the GPU.

`choose` finds the recipes that are safe for a model, and the exceptions that the model needs under
them. `predict` computes the time and the memory of a step on a GPU. `report` writes both to files.
"""
