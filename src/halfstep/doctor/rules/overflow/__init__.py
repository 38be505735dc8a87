"""Values exceed the range of a half format."""
