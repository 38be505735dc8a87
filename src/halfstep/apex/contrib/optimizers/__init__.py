"""`apex.contrib.optimizers`: the wrapper for half-precision parameters from before `amp`."""

from halfstep.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer

__all__ = ["FP16_Optimizer"]
