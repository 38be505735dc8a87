"""Presents figures of any source: units, and self-contained pages."""
