"""Train a one-scale YOLO-style detector on drawn boxes; report one minus the mean best IoU."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(12)
IMG, GRID = 32, 8
STRIDE = IMG // GRID
ANCHORS = torch.tensor([[4.0, 8.0], [8.0, 4.0]])


def make_scenes(n, gen):
    images = 0.15 * torch.randn(n, 1, IMG, IMG, generator=gen)
    boxes = []
    for i in range(n):
        rows = []
        for k in range(2):
            tall = torch.rand(1, generator=gen).item() < 0.5
            u = 3.0 + 11.0 * torch.rand(2, generator=gen)
            w, h = (0.6 * u[0].item(), u[1].item()) if tall else (u[0].item(), 0.6 * u[1].item())
            cx = 8 + 16 * k + (torch.rand(1, generator=gen).item() - 0.5) * 4
            cy = h / 2 + torch.rand(1, generator=gen).item() * (IMG - h - 1)
            x1, y1 = max(0, round(cx - w / 2)), round(cy - h / 2)
            x2, y2 = min(IMG, round(cx + w / 2) + 1), min(IMG, round(cy + h / 2) + 1)
            images[i, 0, y1:y2, x1:x2] += 1.0
            rows.append([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])
        boxes.append(rows)
    return images, torch.tensor(boxes, dtype=torch.float32)


class YOLOLayer(nn.Module):
    def __init__(self, anchors):
        super().__init__()
        self.register_buffer("anchor_vec", anchors / STRIDE)
        gy, gx = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        self.register_buffer("grid_xy", torch.stack([gx, gy], -1).float())

    def forward(self, p):
        bs = p.shape[0]
        p = p.view(bs, len(self.anchor_vec), 5, GRID, GRID).permute(0, 1, 3, 4, 2)
        if self.training:
            return torch.cat([torch.sigmoid(p[..., 0:4]), p[..., 4:]], -1)
        xy = torch.sigmoid(p[..., 0:2]) + self.grid_xy
        wh = torch.exp(p[..., 2:4]) * self.anchor_vec[:, None, None]
        return torch.cat([xy * STRIDE, wh * STRIDE, torch.sigmoid(p[..., 4:])], -1)


class Darknet(nn.Module):
    def __init__(self, f=12):
        super().__init__()

        def cbl(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o),
                                 nn.LeakyReLU(0.1))
        self.backbone = nn.Sequential(cbl(1, f, 2), cbl(f, 2 * f, 2), cbl(2 * f, 3 * f, 1),
                                      cbl(3 * f, 3 * f, 1))
        self.head = nn.Conv2d(3 * f, len(ANCHORS) * 5, 1)
        self.yolo = YOLOLayer(ANCHORS)

    def forward(self, x):
        return self.yolo(self.head(self.backbone(x)))


def wh_iou(a, b):
    inter = torch.min(a[:, None], b[None]).prod(-1)
    return inter / (a.prod(-1)[:, None] + b.prod(-1)[None] - inter)


def build_targets(targets, anchor_vec):
    n = targets.shape[0]
    flat = targets.reshape(-1, 4) / STRIDE
    b = torch.arange(n).repeat_interleave(targets.shape[1])
    a = wh_iou(flat[:, 2:], anchor_vec).argmax(1)
    gi, gj = flat[:, 0].long().clamp(max=GRID - 1), flat[:, 1].long().clamp(max=GRID - 1)
    txy = flat[:, :2] - torch.stack([gi, gj], -1)
    twh = torch.log(flat[:, 2:] / anchor_vec[a])
    tconf = torch.zeros(n, len(anchor_vec), GRID, GRID)
    tconf[b, a, gj, gi] = 1
    return (b, a, gj, gi), txy, twh, tconf


def compute_loss(p, targets, model):
    idx, txy, twh, tconf = build_targets(targets, model.yolo.anchor_vec)
    pi = p[idx]
    lxy = F.mse_loss(pi[:, 0:2], txy)
    lwh = F.mse_loss(pi[:, 2:4], twh)
    lconf = F.binary_cross_entropy_with_logits(p[..., 4], tconf, pos_weight=torch.tensor(8.0))
    return 8 * lxy + 4 * lwh + lconf, (lxy.item(), lwh.item(), lconf.item())


def to_corners(b):
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


@torch.no_grad()
def mean_best_iou(model, images, boxes, keep=4):
    model.eval()
    out = model(images).reshape(len(images), -1, 5)
    model.train()
    top = out.gather(1, out[..., 4].topk(keep, 1).indices[..., None].expand(-1, -1, 5))
    p, t = to_corners(top[..., :4])[:, None], to_corners(boxes)[:, :, None]
    inter = (torch.min(p[..., 2:], t[..., 2:]) - torch.max(p[..., :2], t[..., :2])).clamp(min=0)
    inter = inter.prod(-1)
    union = (p[..., 2:] - p[..., :2]).prod(-1) + (t[..., 2:] - t[..., :2]).prod(-1) - inter
    return (inter / union).amax(-1).mean().item()


gen = torch.Generator().manual_seed(0)
train_x, train_b = make_scenes(300, gen)
val_x, val_b = make_scenes(100, gen)
model = Darknet()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / 240)))
for step in range(240):
    idx = torch.randint(0, len(train_x), (16,))
    loss, parts = compute_loss(model(train_x[idx]), train_b[idx], model)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 40 == 39:
        print(step + 1, "loss %.3f xy %.4f wh %.4f conf %.4f" % (loss.item(), *parts),
              "iou %.3f" % mean_best_iou(model, val_x, val_b))
print("RESULT", 1 - mean_best_iou(model, val_x, val_b))
