"""Which recipe for a model, and what it would buy, before it is trained.

`choose` looks for the recipes that a model survives, and the exceptions that it needs under them.
"""
