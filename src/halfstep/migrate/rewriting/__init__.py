"""Writes the code that replaces amp, with `halfstep.Engine` or `torch.amp`."""
