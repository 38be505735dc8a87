"""The program as it is written: its syntax tree, its names, what it does with amp, its new text."""
