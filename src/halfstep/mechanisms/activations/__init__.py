"""Activations saved for the backward in a few bits per element: the field `activations`."""
