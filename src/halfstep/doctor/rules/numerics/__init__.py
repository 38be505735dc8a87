"""A result is inf or NaN, in every format, or only in half precision, which rounds values."""
