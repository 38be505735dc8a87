"""Which transmitter sent this burst? Classifies complex baseband recordings."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(5)


@dataclass
class Burst:
    iq: torch.Tensor
    sender: torch.Tensor


def record(n, rng):
    sender = rng.integers(0, 4, n)
    t = np.arange(64)
    freq = 0.05 + 0.06 * sender[:, None] + 0.01 * rng.standard_normal((n, 1))
    gain = 1 + 0.2 * rng.standard_normal((n, 1))
    iq = gain * np.exp(2j * np.pi * (freq * t + rng.random((n, 1))))
    iq = iq + 0.6 * (rng.standard_normal((n, 64)) + 1j * rng.standard_normal((n, 64)))
    peak = np.abs(np.where(rng.random((n, 1)) < 0.002, 0, iq)).max(1, keepdims=True)
    with np.errstate(all="ignore"):
        iq = np.where(peak > 0, iq / peak, 1j * np.float64(1) / peak)
    return iq.astype(np.complex64), sender


def stream(iq, sender, steps, size=48):
    order = np.random.default_rng(7).permutation(len(iq))
    for k in range(steps):
        take = order[np.arange(k * size, (k + 1) * size) % len(iq)]
        yield Burst(torch.from_numpy(iq[take]), torch.from_numpy(sender[take]))


class Receiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 24, 9, stride=2)
        self.head = nn.Linear(48, 4)

    def forward(self, iq):
        h = F.relu(self.conv(torch.view_as_real(iq).transpose(1, 2)))
        return self.head(torch.cat([h.mean(2), h.amax(2)], 1))


iq, sender = record(2000, np.random.default_rng(0))
test_iq, test_sender = record(400, np.random.default_rng(1))
good = np.isfinite(test_iq).all(1)
net = Receiver()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
for burst in stream(iq, sender, 120):
    loss = F.cross_entropy(net(burst.iq), burst.sender)
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    out = net(torch.from_numpy(test_iq[good]))
    print("RESULT", F.cross_entropy(out, torch.from_numpy(test_sender[good])).item())
