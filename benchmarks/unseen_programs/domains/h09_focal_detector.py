import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(60)

SIZE, CELLS, STRIDE = 32, 8, 4


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    img = 0.1 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    boxes = torch.empty(n, 5)
    for i in range(n):
        w, h = torch.randint(5, 12, (2,), generator=g).tolist()
        x, y, kind = (int(torch.randint(0, m, (1,), generator=g)) for m in (SIZE - w, SIZE - h, 2))
        patch = torch.ones(h, w)
        patch[1:-1, 1:-1] = 0.3 if kind else 1.0
        img[i, 0, y:y + h, x:x + w] += patch
        boxes[i] = torch.tensor([x, y, x + w, y + h, kind])
    return img, boxes


def cbr(i, o, s):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Backbone(nn.Sequential):
    def __init__(self):
        super().__init__(cbr(1, 12, 1), cbr(12, 24, 2), cbr(24, 32, 2))


class Detector(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.backbone[0].requires_grad_(False)
        self.neck = nn.Sequential(nn.Conv2d(32, 48, 3, padding=1), nn.GroupNorm(8, 48), nn.ReLU(),
                                  nn.Conv2d(48, 48, 3, padding=1), nn.GroupNorm(8, 48), nn.ReLU())
        self.cls, self.reg = nn.Conv2d(48, 2, 1), nn.Conv2d(48, 4, 1)
        nn.init.constant_(self.cls.bias, -math.log((1 - 0.01) / 0.01))
        c = (torch.arange(CELLS) + 0.5) * STRIDE
        self.register_buffer("cx", c.repeat(CELLS))
        self.register_buffer("cy", c.repeat_interleave(CELLS))

    def train(self, mode=True):
        super().train(mode)
        for m in self.backbone.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self

    def forward(self, x):
        f = self.neck(self.backbone(x))
        return self.cls(f).flatten(2).transpose(1, 2), F.softplus(self.reg(f)).flatten(2).transpose(1, 2) * STRIDE

    def decode(self, d):
        return torch.stack([self.cx - d[..., 0], self.cy - d[..., 1], self.cx + d[..., 2], self.cy + d[..., 3]], -1)


def iou(a, b):
    wh = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0)
    area = lambda t: (t[..., 2] - t[..., 0]) * (t[..., 3] - t[..., 1])
    inter = wh.prod(-1)
    return inter / (area(a) + area(b) - inter + 1e-6)


def losses(model, x, gt):
    logits, dist = model(x)
    centre = (gt[:, :2] + gt[:, 2:4]) / 2
    near = ((model.cx - centre[:, :1]).abs() < 3) & ((model.cy - centre[:, 1:2]).abs() < 3)
    target = torch.zeros_like(logits)
    b, k = near.nonzero(as_tuple=True)
    target[b, k, gt[b, 4].long()] = 1
    p = logits.sigmoid()
    pt = torch.where(target == 1, p, 1 - p)
    alpha = torch.where(target == 1, 0.25, 0.75)
    focal = alpha * (1 - pt) ** 2 * F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    n = max(len(b), 1)
    box = 1 - iou(model.decode(dist)[b, k], gt[b, :4])
    return focal.sum() / n, box.sum() / n


@torch.no_grad()
def miss(model, x, gt):
    model.eval()
    logits, dist = model(x)
    best = logits.amax(2).argmax(1)
    r = torch.arange(len(x))
    ok = (iou(model.decode(dist)[r, best], gt[:, :4]) > 0.6) & (logits[r, best].argmax(1) == gt[:, 4])
    return 1 - ok.float().mean().item()

def pretrain(x, gt, steps=60):
    net = nn.Sequential(Backbone(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        i = torch.randint(0, len(x), (32,))
        opt.zero_grad()
        F.cross_entropy(net(x[i]), gt[i, 4].long()).backward()
        opt.step()
    return net[0]


x, gt = scenes(800, 0)
val = scenes(200, 1)
model = Detector(pretrain(x, gt))
heads = [*model.neck.parameters(), *model.cls.parameters(), *model.reg.parameters()]
body = [p for p in model.backbone.parameters() if p.requires_grad]
opt = torch.optim.AdamW([{"params": body, "lr": 2e-4}, {"params": heads, "lr": 2e-3}], weight_decay=1e-4)
for epoch in range(9):
    model.train()
    for idx in torch.randperm(len(x)).split(32):
        cls, box = losses(model, x[idx], gt[idx])
        opt.zero_grad()
        (cls + box).backward()
        opt.step()
    print(f"epoch {epoch} focal {cls.item():.4f} iou-loss {box.item():.4f} miss {miss(model, *val):.3f}")
print("RESULT", miss(model, *val))
