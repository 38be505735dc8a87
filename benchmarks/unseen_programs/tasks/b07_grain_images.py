"""Sorts micrographs of grains by class with a small convolutional net in mixed precision."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)


def micrographs(n, gen, side=16, classes=4):
    label = torch.randint(0, classes, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angle = label.float() * 0.785 + 0.12 * torch.randn(n, generator=gen)
    freq = 0.9 + 0.2 * torch.rand(n, generator=gen)
    along = angle.cos()[:, None, None] * xx + angle.sin()[:, None, None] * yy
    shift = 6.28 * torch.rand(n, generator=gen)[:, None, None]
    image = torch.sin(freq[:, None, None] * along + shift)
    image = image + 0.8 * torch.randn(n, side, side, generator=gen)
    return image.unsqueeze(1), label


class GrainNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 5, padding=2)
        self.mid = nn.Conv2d(12, 24, 3, padding=1, stride=2)
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.mid(x))
        return self.head(x.mean((2, 3)))


class AmpLoop:
    def __init__(self, net, lr=0.1, max_norm=1.0):
        self.net = net
        self.max_norm = max_norm
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def true_grads(self):
        inverse = 1.0 / self.scaler.get_scale()
        grads = [p.grad for p in self.net.parameters() if p.grad is not None]
        for g in grads:
            g.mul_(inverse)
        return grads

    def clip(self):
        norm = torch.sqrt(sum(g.pow(2).sum() for g in self.true_grads()))
        if torch.isfinite(norm) and norm > self.max_norm:
            for p in self.net.parameters():
                p.grad.mul_(self.max_norm / norm)
        return norm.item()

    def step(self, x, y):
        self.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.net(x), y)
        self.scaler.scale(loss).backward()
        norm = self.clip()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), norm

    @torch.no_grad()
    def score(self, x, y):
        self.net.eval()
        value = F.cross_entropy(self.net(x), y).item()
        self.net.train()
        return value


def run():
    gen = torch.Generator().manual_seed(6)
    x, y = micrographs(1000, gen)
    vx, vy = micrographs(300, gen)
    loop = AmpLoop(GrainNet())
    for epoch in range(8):
        for pick in torch.randperm(len(x), generator=gen).split(50):
            loss, norm = loop.step(x[pick], y[pick])
        print(f"epoch {epoch} loss {loss:.3f} norm {norm:.4f} val {loop.score(vx, vy):.4f}")
    return loop.score(vx, vy)


print("RESULT", run())
