"""Autocast or the compiler does not do what the program intends."""
