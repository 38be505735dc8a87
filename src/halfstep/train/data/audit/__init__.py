"""Finds faults of a data set, splits it into folds, and proposes a config for it."""
