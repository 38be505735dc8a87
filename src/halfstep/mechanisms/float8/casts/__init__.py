"""Casts of matrices to FP8 with their transposes, in plain PyTorch and in Triton."""
