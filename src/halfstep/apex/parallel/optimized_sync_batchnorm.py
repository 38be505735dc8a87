"""`apex.parallel.optimized_sync_batchnorm`: the module that some programs import it from."""

from halfstep.apex.parallel.sync_batchnorm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
