"""What a config may say, where it is found, and what is wrong with it.

One class a section, the text under each field is its documentation. Values are checked strictly (a
string is not a number) and unknown keys are refused; `errors` turns what pydantic reports into one
line. Nothing here imports torch.
"""

from halfstep.train.config.data import DataConfig
from halfstep.train.config.distributed import DistributedConfig
from halfstep.train.config.loop import (
    AverageConfig,
    CheckpointsConfig,
    EarlyStoppingConfig,
    LrScalingConfig,
)
from halfstep.train.config.model import ModelConfig
from halfstep.train.config.optimizer import (
    AdamConfig,
    AdamWConfig,
    LowBitAdamConfig,
    LowBitAdamWConfig,
    OptimizerConfig,
    SgdConfig,
    TimmOptimizerConfig,
)
from halfstep.train.config.schedule import (
    ConstantConfig,
    CosineConfig,
    MultiStepConfig,
    OneCycleConfig,
    PlateauConfig,
    ScheduleConfig,
    StepConfig,
)
from halfstep.train.config.schema import Config
from halfstep.train.config.section import Section

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "AverageConfig",
    "CheckpointsConfig",
    "Config",
    "ConstantConfig",
    "CosineConfig",
    "DataConfig",
    "DistributedConfig",
    "EarlyStoppingConfig",
    "LowBitAdamConfig",
    "LowBitAdamWConfig",
    "LrScalingConfig",
    "ModelConfig",
    "MultiStepConfig",
    "OneCycleConfig",
    "OptimizerConfig",
    "PlateauConfig",
    "ScheduleConfig",
    "Section",
    "SgdConfig",
    "StepConfig",
    "TimmOptimizerConfig",
]
