"""Tools for tensors: find them in arguments, summarise their contents, compute in fp32."""
