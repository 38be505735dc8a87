"""A bad step again: plainly, traced to the operator that made inf or NaN, and in fp32."""
