"""Runs a bad step again: unchanged, traced to the operator that made inf or NaN, and in fp32."""
