"""Trains a small convolutional network with sharpness-aware minimisation under label noise."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(113)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.norm(torch.stack([p.grad.norm(2) for g in self.param_groups
                                       for p in g["params"]]))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError("call first_step and second_step")


def disable_running_stats(model):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.backup_momentum, m.momentum = m.momentum, 0


def enable_running_stats(model):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d) and hasattr(m, "backup_momentum"):
            m.momentum = m.backup_momentum


def blobs(n, noise, proto):
    y = torch.randint(0, 5, (n,))
    x = proto[y] + 0.8 * torch.randn(n, 1, 12, 12)
    flip = torch.rand(n) < noise
    return x, torch.where(flip, torch.randint(0, 5, (n,)), y)


proto = F.interpolate(torch.randn(5, 1, 4, 4), scale_factor=3)
train, val = blobs(800, 0.2, proto), blobs(500, 0.0, proto)
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                      nn.MaxPool2d(2),
                      nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 5))
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.5, lr=0.05, momentum=0.9,
                weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, 8)
for epoch in range(1, 9):
    model.train()
    for idx in torch.randperm(len(train[0])).split(40):
        x, y = train[0][idx], train[1][idx]
        enable_running_stats(model)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.first_step()
        disable_running_stats(model)
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        optimizer.second_step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        logits = model(val[0])
        v = F.cross_entropy(logits, val[1]).item()
    print(f"epoch {epoch} train {loss.item():.4f} val {v:.4f} "
          f"acc {(logits.argmax(1) == val[1]).float().mean():.3f}")
print("RESULT", round(v, 5))
