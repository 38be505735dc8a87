"""Reports: make a diagnosis from evidence, and print it on a terminal or as JSON."""
