"""Observers of a run, one per file: meters, guards, probes, trackers, early stopping, doctor."""
