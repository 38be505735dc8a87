"""The loss scale: where it goes, what becomes of it, and its absence."""
