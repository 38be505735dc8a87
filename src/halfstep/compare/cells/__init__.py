"""Cells run: where, when and how, what each leaves on disk, and how it goes."""
