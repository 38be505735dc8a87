"""Rows shown: in the terminal, as text, LaTeX, CSV, JSON and pictures, and as one page."""
