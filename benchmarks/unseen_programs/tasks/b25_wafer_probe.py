"""Grades wafers from probe currents with a dense net that was ported from another code base."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(137)

SETTINGS = {
    "inputs": 16, "layers": (48, 48), "norm": {"momentum": 0.99, "eps": 1e-3},
    "dropout": 0.1, "lr": 4e-3, "epochs": 7, "batch": 32,
}


def wafers(n, seed):
    """Leakage currents are heavy-tailed and differ from lot to lot."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(n, SETTINGS["inputs"], generator=g)
    lot = 0.6 * torch.randn(n // 4, 1, generator=g).repeat_interleave(4, dim=0)
    probe = torch.sinh(0.9 * (base + lot))
    score = base[:, 0] + 0.8 * base[:, 1] * base[:, 2] - 0.6 * base[:, 3]
    score = score + 0.15 * torch.randn(n, generator=g)
    grade = torch.bucketize(score, torch.tensor([-0.7, 0.7]))
    return probe, grade


def dense_block(inputs, outputs, norm, dropout):
    return nn.Sequential(
        nn.Linear(inputs, outputs, bias=False),
        nn.BatchNorm1d(outputs, momentum=norm["momentum"], eps=norm["eps"]),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
    )


class WaferNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        widths = (s["inputs"],) + s["layers"]
        self.blocks = nn.ModuleList(
            dense_block(a, b, s["norm"], s["dropout"]) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, probe):
        h = probe
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def train(net, probe, grade, val, s):
    opt = torch.optim.AdamW(net.parameters(), lr=s["lr"], weight_decay=0.02)
    steps = s["epochs"] * math.ceil(len(probe) / s["batch"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    scores = []
    for epoch in range(s["epochs"]):
        net.train()
        for pick in torch.randperm(len(probe)).split(s["batch"]):
            loss = F.cross_entropy(net(probe[pick]), grade[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        scores.append(validate(net, *val))
        print(f"epoch {epoch} train {loss.item():.4f} val {scores[-1]:.4f}")
    return scores


@torch.no_grad()
def validate(net, probe, grade):
    net.eval()
    return F.cross_entropy(net(probe), grade).item()


if __name__ == "__main__":
    probe, grade = wafers(1764, 1)
    scores = train(WaferNet(SETTINGS), probe, grade, wafers(400, 2), SETTINGS)
    print("RESULT", sum(scores[-3:]) / 3)
