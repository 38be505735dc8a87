"""Cell type classification from stained microscope crops with a small residual network."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(24)

TYPES = 4


def slides(n_slides, per_slide, gen):
    """Crops from several slides; every slide has its own stain strength and background."""
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    images, types = [], []
    for _ in range(n_slides):
        y = torch.randint(0, TYPES, (per_slide,), generator=gen)
        cx = 6 + 4 * torch.rand(per_slide, 1, 1, generator=gen)
        cy = 6 + 4 * torch.rand(per_slide, 1, 1, generator=gen)
        r = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()
        big = torch.tensor([3.0, 5.0, 3.0, 5.0])[y].view(-1, 1, 1)
        core = torch.tensor([0.2, 0.2, 1.0, 1.0])[y].view(-1, 1, 1)
        body = torch.sigmoid(2 * (big - r))
        nucleus = core * torch.sigmoid(2 * (big / 2 - r))
        img = torch.stack([body, nucleus, 0.5 * body + 0.5 * nucleus], 1)
        stain = 0.6 + 0.8 * torch.rand(1, 3, 1, 1, generator=gen)
        ground = 0.5 * torch.randn(1, 3, 1, 1, generator=gen)
        img = ground + stain * img + 0.15 * torch.randn(img.shape, generator=gen)
        images.append(img)
        types.append(y)
    return torch.cat(images), torch.cat(types)


class ConvBN(nn.Module):
    def __init__(self, c_in, c_out, stride=1, bn_momentum=0.9, bn_eps=1e-3):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(c_out, eps=bn_eps, momentum=bn_momentum)

    def forward(self, x):
        return self.bn(self.conv(x))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = ConvBN(c, c), ConvBN(c, c)

    def forward(self, x):
        return F.relu(x + self.b(F.relu(self.a(x))))


class CellNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = ConvBN(3, c, stride=2)
        self.stage = nn.Sequential(Residual(c), Residual(c))
        self.fc = nn.Linear(2 * c, TYPES)

    def forward(self, x):
        h = self.stage(F.relu(self.stem(x)))
        return self.fc(torch.cat([h.mean((2, 3)), h.amax((2, 3))], 1))


@torch.no_grad()
def validate(model, images, types):
    model.eval()
    loss = F.cross_entropy(model(images), types).item()
    model.train()
    return loss


def main():
    gen = torch.Generator().manual_seed(240)
    images, types = slides(40, 32, gen)
    v_images, v_types = slides(12, 32, gen)
    model = CellNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    steps, batch = 400, 4
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=steps, power=0.9)
    ema = None
    for step in range(steps):
        pick = torch.randint(0, len(images), (batch,), generator=gen)
        loss = F.cross_entropy(model(images[pick]), types[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % 80 == 79:
            v = validate(model, v_images, v_types)
            print(f"step {step + 1} train {ema:.4f} val {v:.4f}")
    print(f"RESULT {validate(model, v_images, v_types):.5f}")


if __name__ == "__main__":
    main()
