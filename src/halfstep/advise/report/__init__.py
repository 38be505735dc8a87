"""Writes an answer to a directory: a config to train with, JSON for programs, and a page."""
