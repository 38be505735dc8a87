"""A run in training: how far it is, how it goes through its batches, and who may watch it."""
