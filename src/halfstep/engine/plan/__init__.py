"""The course of a step over the parts of an engine: forward pass, backward pass, update."""
