"""Builds the objects that a config names: model, loss, optimizer, schedule and engine."""
