"""The request for a comparison, its cells, and the checks before the first cell starts."""
