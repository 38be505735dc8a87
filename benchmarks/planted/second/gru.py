"""Recurrent networks with planted faults."""

import torch
from torch import Tensor, nn


class ExpAttention(nn.Module):
    """Bahdanau attention whose weights are exp of raw scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.v = nn.Linear(width, 1, bias=False)
        nn.init.constant_(self.proj.bias, 2.0)
        with torch.no_grad():
            self.v.weight.copy_(torch.rand(1, width) * 0.6 + 0.5)

    def forward(self, h: Tensor) -> Tensor:
        energy = torch.exp(self.v(torch.tanh(self.proj(h))))
        return (energy * h).sum(1) / energy.sum(1)


class ExpAttentionNet(nn.Module):
    """Scores above 12."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 20, batch_first=True)
        self.attention = ExpAttention(20)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        return self.head(self.attention(h))


class UnitSteps(nn.Module):
    """Each step divided by its length."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(torch.sum(x * x, dim=-1, keepdim=True) + 1e-8)


class CosineNet(nn.Module):
    """Padded steps have length zero, and 1e-8 is zero in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16, bias=False)
        self.unit = UnitSteps()
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(self.unit(self.embed(x)))
        return self.head(h.mean(1))


class LogProbability(nn.Module):
    """Log of a softmax, guarded by 1e-8."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.logits = nn.Linear(width, classes)
        with torch.no_grad():
            self.logits.bias.copy_(torch.linspace(0.0, -24.0, classes))

    def forward(self, h: Tensor) -> Tensor:
        return torch.log(torch.softmax(self.logits(h), dim=-1) + 1e-8)


class LogProbabilityNet(nn.Module):
    """Probabilities that fp16 rounds to zero, so that the log is minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 16, batch_first=True)
        self.mix = LogProbability(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.rnn(x)
        return self.mix(h[0])


class Rate(nn.Module):
    """A count over a small exposure: the quotient is below 1,000, its derivative is not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.exposure = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        exposure = 0.002 + 0.0005 * torch.sigmoid(self.exposure(h))
        return torch.tanh(h) / exposure * 0.004


class RateNet(nn.Module):
    """Overflow in the backward pass only: the quotient over the exposure again is 250,000."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 16, batch_first=True)
        self.mix = nn.Linear(16, 16)
        self.rate = Rate(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        return self.head(self.rate(self.mix(h.mean(1))))


class Kernel(nn.Module):
    """Nadaraya-Watson weights exp(-distance) over their sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) * 0.3)

    def forward(self, h: Tensor) -> Tensor:
        distance = 20 + 4 * (h - self.query).abs().mean(-1, keepdim=True)
        weight = torch.exp(-distance)
        return (weight * h).sum(1) / weight.sum(1)


class KernelNet(nn.Module):
    """All weights are below the smallest number of fp16: the sum is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 16, batch_first=True)
        self.kernel = Kernel(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        return self.head(self.kernel(h))
