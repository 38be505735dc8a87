"""`apex.contrib.clip_grad`: torch's own clip, whose foreach kernels do what Apex's did."""

from torch.nn.utils import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
