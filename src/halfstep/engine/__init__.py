"""One training step under a recipe, for a loop of your own."""

from halfstep.engine.average import EMA, SWA
from halfstep.engine.checkpoints.sharded import full_state_dict, load_sharded, save_sharded
from halfstep.engine.closing.nonfinite import NonFiniteGradients
from halfstep.engine.closing.result import OptimizerStep, StepResult
from halfstep.engine.engine import Engine
from halfstep.engine.misuse import EngineWarning
from halfstep.engine.parallel.fsdp import shard
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse

__all__ = [
    "EMA",
    "SWA",
    "Engine",
    "EngineWarning",
    "LossScaleCollapse",
    "NonFiniteGradients",
    "OptimizerStep",
    "StepResult",
    "full_state_dict",
    "load_sharded",
    "save_sharded",
    "shard",
]
