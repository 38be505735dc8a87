"""A result is infinite or undefined in any format, or because a value was rounded to 0."""
