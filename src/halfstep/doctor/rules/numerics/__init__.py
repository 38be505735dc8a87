"""A result is inf or NaN, in fp32 too or only because half precision rounds a value to 0 or 1."""
