"""A watch over a program: the points of torch at which it listens, and what it does there."""
