"""Numerics that must be fast: half precision on a CPU, and rounding to formats of any width."""
