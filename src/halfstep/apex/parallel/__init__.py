"""`apex.parallel`: data parallelism and synchronized batch norm."""

import torch

from halfstep.apex.parallel.distributed import DistributedDataParallel, Reducer
from halfstep.apex.parallel.sync_batchnorm import (
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)

ReduceOp = torch.distributed.ReduceOp

__all__ = [
    "DistributedDataParallel",
    "ReduceOp",
    "Reducer",
    "SyncBatchNorm",
    "convert_syncbn_model",
    "create_syncbn_process_group",
]
