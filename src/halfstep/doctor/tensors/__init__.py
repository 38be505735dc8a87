"""Tensors: those inside what functions take and give, what is in them, and the same in fp32."""
