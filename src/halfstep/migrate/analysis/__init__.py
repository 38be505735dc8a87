"""What the program means: levels, forward passes, steps, and whether all of it is understood."""
