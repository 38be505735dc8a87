"""Norm layers in fp32: the field `norms`."""
