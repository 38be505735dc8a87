"""Numerics that must be fast: products in other formats, rounding, packing, gradients."""
