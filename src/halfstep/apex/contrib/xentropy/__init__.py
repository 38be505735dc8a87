"""`apex.contrib.xentropy`: the cross entropy of each row, with label smoothing."""

from halfstep.apex.contrib.xentropy.softmax_xentropy import SoftmaxCrossEntropyLoss

__all__ = ["SoftmaxCrossEntropyLoss"]
