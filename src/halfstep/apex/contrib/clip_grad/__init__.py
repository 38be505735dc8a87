"""`apex.contrib.clip_grad`: torch's `clip_grad_norm_`, which has foreach kernels as Apex's had."""

from torch.nn.utils import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
