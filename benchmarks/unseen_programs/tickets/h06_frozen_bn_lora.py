"""Adapt a frozen convolutional backbone with low-rank updates; report validation error."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(33)


def spectrograms(n, classes, seed, detune=0.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    f = torch.arange(16).float()[None, :, None]
    t = torch.arange(12).float()[None, None]
    slope = (y.float() / classes - 0.4)[:, None, None] * 1.6 + detune
    start = 5 + 5 * torch.rand(n, 1, 1, generator=g)
    x = torch.exp(-0.5 * (f - start - slope * t) ** 2) * 2
    return (x + 0.35 * torch.randn(x.shape, generator=g))[:, None], y


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 12, 48)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return F.relu(self.fc(x.flatten(1)))


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, scale=2.0):
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


class Tuner(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(48, classes)

    def train(self, mode=True):
        super().train(mode)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, params, data, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr)
    x, y = data
    model.train()
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"{tag} step {step} loss {loss.item():.4f}")


def main():
    backbone = Backbone()
    source = nn.Sequential(backbone, nn.Linear(48, 5))
    fit(source, source.parameters(), spectrograms(600, 5, 0), 90, 3e-3, "pretrain")
    backbone.fc = LoRALinear(backbone.fc)
    for name, p in backbone.named_parameters():
        p.requires_grad_("lora_" in name)
    tuner = Tuner(backbone, 6)
    trainable = [p for p in tuner.parameters() if p.requires_grad]
    fit(tuner, trainable, spectrograms(500, 6, 1, 0.1), 150, 5e-3, "adapt")
    tuner.eval()
    vx, vy = spectrograms(400, 6, 2, 0.1)
    with torch.no_grad():
        print("RESULT", (tuner(vx).argmax(1) != vy).float().mean().item())


if __name__ == "__main__":
    main()
