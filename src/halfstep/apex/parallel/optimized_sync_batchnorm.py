"""The module from which some programs import `SyncBatchNorm`."""

from halfstep.apex.parallel.sync_batchnorm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
