"""A failing step as files, which can be run again without its program."""
