"""A failing step as files: written down, and run again without the program that made it."""
