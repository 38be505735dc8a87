"""The format in which processes sum gradients: the field `reduce`."""
