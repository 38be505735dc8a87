"""What belongs to a micro-step: its batch, its weight and the gradient that it starts from."""
