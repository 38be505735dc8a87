"""The program as it is written: its syntax tree, its names, its uses of amp, and its new text."""
