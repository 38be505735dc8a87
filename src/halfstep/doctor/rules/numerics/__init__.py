"""A result is inf or NaN in every format, or because half precision rounds a value to 0 or 1."""
