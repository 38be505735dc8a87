"""The values of tensors: losses, gradients and parameters in their formats."""
