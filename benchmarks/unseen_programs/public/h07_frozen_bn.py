"""Fine-tunes a pretrained dense predictor in batches of two with fixed normalisation statistics."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(131)


def rooms(n, tint):
    """Images of slanted planes; the target is the depth of every pixel."""
    t = torch.linspace(-1, 1, 20)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    a = torch.randn(n, 3, 1, 1)
    depth = 2 + 0.6 * a[:, 0] * xx + 0.6 * a[:, 1] * yy + 0.3 * a[:, 2]
    shade = torch.stack([1 / depth.clamp(min=0.4), depth / 3, torch.sin(3 * depth)], 1)
    return shade * tint.view(1, 3, 1, 1) + 0.1 * torch.randn(n, 3, 20, 20), depth.unsqueeze(1)


class Net(nn.Module):
    def __init__(self, w=20):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w),
                                  nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(w, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w),
                                  nn.ReLU(),
                                  nn.Conv2d(w, w, 3, 1, 2, dilation=2,
                                            bias=False), nn.BatchNorm2d(w), nn.ReLU())
        self.head = nn.Conv2d(w, 1, 1)
        self.norm_eval = False

    def forward(self, x):
        h = self.stem(x)
        return self.head(h + self.body(h))

    def train(self, mode=True):
        super().train(mode)
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def freeze(self):
        self.norm_eval = True
        self.stem.requires_grad_(False)
        return self.train()


def rmse(model, data):
    model.eval()
    with torch.no_grad():
        out = F.mse_loss(model(data[0]), data[1]).sqrt().item()
    model.train()
    return out


def run(model, data, val, steps, batch, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, steps, power=0.9)
    model.train()
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(data[0]), (batch,))
        loss = F.mse_loss(model(data[0][idx]), data[1][idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 5.0)
        opt.step()
        sched.step()
        if step % (steps // 4) == 0:
            print(f"{tag} step {step} loss {loss.item():.4f} val rmse {rmse(model, val):.4f}")
    return rmse(model, val)


source, target = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.7, 1.2, 0.9])
pretrained = Net()
run(pretrained, rooms(1200, source), rooms(100, source), 120, 32, 0.03, "pretrain")
model = copy.deepcopy(pretrained).freeze()
data, val = rooms(120, target), rooms(200, target)
print(f"before fine-tuning val rmse {rmse(model, val):.4f}")
print("RESULT", round(run(model, data, val, 240, 2, 0.005, "finetune"), 5))
