"""Predicts the time and the memory of a training step on a GPU that need not be in this machine.

`step.py` runs one training step under a recipe on tensors without memory, and `trace.py` records
its operators. From the operators, `cost.py` computes the time of the step on a GPU of `gpus.toml`,
and `memory.py` its memory; `interval.py` computes the uncertainty of the time.
"""
