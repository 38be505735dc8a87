"""Losses that depend on what they must not, or not on what they should."""
