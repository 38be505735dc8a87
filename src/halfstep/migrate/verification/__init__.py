"""Checks a rewritten program, independently of the code that rewrites it."""
