"""A loss that depends on what it must not, or that does not depend on what it should."""
