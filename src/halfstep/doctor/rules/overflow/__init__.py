"""Values exceed the range of a half-precision format."""
