"""Linear and convolution layers that multiply in FP8: the field `float8`."""
