"""A step uses no gradients, or other ones than the loop intends."""
