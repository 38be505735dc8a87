"""Predicts which recipe suits a model and what it gains, before training and without the GPU.

`choose` finds the recipes that are safe for a model, and the exceptions that the model needs under
them. `step.py` runs one training step under a recipe on tensors without memory, and `trace.py`
records its operators. From the operators, `cost.py` computes the time of the step on a GPU of
`gpus.toml`, and `memory.py` its memory; `interval.py` computes the uncertainty of the time.
"""
