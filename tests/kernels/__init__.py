"""Tests of the kernels, one file each."""
