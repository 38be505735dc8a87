"""One forward and backward pass, or micro-step, under a recipe."""
