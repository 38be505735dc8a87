"""Which recipe for a model, and what it would buy, before it is trained and on a GPU not there.

`choose` looks for the recipes that a model survives, and the exceptions that it needs under them.
`step.py` runs one training step under a recipe on tensors without memory, and `trace.py` writes
down what it asks for; `cost.py` makes time of that on a GPU of `gpus.toml`, `memory.py` the bytes,
and `interval.py` says how far to trust them.
"""
