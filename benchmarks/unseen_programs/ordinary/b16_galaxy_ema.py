"""Galaxy morphology. The exponential moving average of the weights is what gets published."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)

yy, xx = torch.meshgrid(torch.linspace(-1, 1, 14), torch.linspace(-1, 1, 14), indexing="ij")


def galaxies(n):
    kind = torch.randint(0, 3, (n,))
    angle = torch.rand(n, 1, 1) * 3.14
    u = xx * angle.cos() + yy * angle.sin()
    v = -xx * angle.sin() + yy * angle.cos()
    squash = torch.tensor([1.0, 0.45, 0.45])[kind].view(-1, 1, 1)
    r = (u ** 2 + (v / squash) ** 2).sqrt()
    light = 6.0 * torch.exp(-3 * r)
    arms = (kind == 2).view(-1, 1, 1) * 2.0 * torch.cos(9 * r + 2 * torch.atan2(v, u)) * torch.exp(-2 * r)
    return (light + arms + 0.5 * torch.randn(n, 14, 14) + 2.0).unsqueeze(1), kind


def block(i, o, s):
    return [nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval()
        for p in self.shadow.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


net = nn.Sequential(*block(1, 12, 1), *block(12, 24, 2), *block(24, 24, 2),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))
ema = Ema(net, decay=0.95)
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
image, kind = galaxies(1200)

for epoch in range(5):
    net.train()
    for idx in torch.randperm(len(image)).split(40):
        loss = F.cross_entropy(net(image[idx]), kind[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(net)
    print(f"epoch {epoch} loss {loss.item():.4f}")

image, kind = galaxies(400)
with torch.no_grad():
    print("RESULT", F.cross_entropy(ema.shadow(image), kind).item())
