"""A made-up block format, as a folder of `halfstep.mechanisms` would define it."""
