"""A result is inf or NaN: in any format, or only in a half format, because it rounds values."""
