import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(61)
torch.set_num_threads(1)


def blobs(n, gen, turn):
    label = torch.randint(0, 5, (n,), generator=gen)
    z = torch.randn(n, 12, generator=gen)
    angle = label * 1.2566 + turn
    radius = 2 + 0.3 * torch.randn(n, generator=gen)
    z[:, 0] = radius * angle.cos() + 0.4 * z[:, 0]
    z[:, 1] = radius * angle.sin() + 0.4 * z[:, 1]
    return torch.cat([z, z[:, :2].prod(1, keepdim=True)], 1), label


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = nn.Sequential(nn.Linear(13, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.upper = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.upper(self.lower(x)))

    def train(self, mode=True):
        super().train(mode)
        for part in (self.lower, self.upper):
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        return self


def pretrain(gen):
    model = Tower()
    x, y = blobs(1500, gen, turn=0.6)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for idx in torch.randperm(1500).repeat(4).split(50):
        opt.zero_grad()
        F.cross_entropy(model(x[idx]), y[idx]).backward()
        opt.step()
    return copy.deepcopy(model.state_dict())


def finetune(weights, gen):
    model = Tower()
    weights = {k: v for k, v in weights.items() if not k.startswith("head.")}
    report = model.load_state_dict(weights, strict=False, assign=True)
    print("fresh:", report.missing_keys)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    opt = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    x, y = blobs(2000, gen, turn=0.0)
    vx, vy = blobs(1000, gen, turn=0.0)
    thaw = {4: (model.upper, 0.02), 8: (model.lower, 0.01)}
    for epoch in range(14):
        if epoch in thaw:
            part, lr = thaw[epoch]
            part.requires_grad_(True)
            opt.add_param_group({"params": list(part.parameters()), "lr": lr})
        if epoch >= 10:
            for group in opt.param_groups:
                group["lr"] *= 0.5
        model.train()
        for idx in torch.randperm(2000, generator=gen).split(64):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            val = F.cross_entropy(model(vx), vy).item()
        print(epoch, [round(g["lr"], 4) for g in opt.param_groups], round(val, 4))
    return val


gen = torch.Generator().manual_seed(8)
print("RESULT", finetune(pretrain(gen), gen))
