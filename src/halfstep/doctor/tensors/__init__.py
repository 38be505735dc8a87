"""Tensors: finding them in arguments and results, their contents, and the same in fp32."""
