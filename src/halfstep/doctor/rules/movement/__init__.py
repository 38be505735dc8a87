"""Weights, or averages of them, do not move as they should, although every number is finite."""
