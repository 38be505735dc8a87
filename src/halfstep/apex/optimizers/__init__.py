"""`apex.optimizers`: Apex's fused optimizers on torch's fused and foreach implementations."""

from halfstep.apex.optimizers.fused_adagrad import FusedAdagrad
from halfstep.apex.optimizers.fused_adam import FusedAdam
from halfstep.apex.optimizers.fused_lamb import FusedLAMB
from halfstep.apex.optimizers.fused_mixed_precision_lamb import FusedMixedPrecisionLamb
from halfstep.apex.optimizers.fused_novograd import FusedNovoGrad
from halfstep.apex.optimizers.fused_sgd import FusedSGD

__all__ = [
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedMixedPrecisionLamb",
    "FusedNovoGrad",
    "FusedSGD",
]
