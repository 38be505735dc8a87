"""Calls of backward, scaler or optimizer are missing, repeated, or in the wrong order."""
