"""IEEE or TF32 products of fp32 tensors: the field `matmul`."""
