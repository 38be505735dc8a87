"""A package, so that its modules find each other."""
