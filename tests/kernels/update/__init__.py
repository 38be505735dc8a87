"""Tests of the kernels that take steps of optimizers."""
