"""Leaf segmentation with a small U-shaped network, gradient accumulation and linear decay."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(34)


@dataclass
class Plan:
    updates: int = 60
    accumulate: int = 6
    micro_batch: int = 6
    lr: float = 6e-3
    warmup: int = 4
    side: int = 16


def leaves(n, side, gen):
    yy, xx = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    x, m = torch.zeros(n, 3, side, side), torch.zeros(n, side, side)
    for _ in range(3):
        cx = side * torch.rand(n, 1, 1, generator=gen)
        cy = side * torch.rand(n, 1, 1, generator=gen)
        a = 3.1416 * torch.rand(n, 1, 1, generator=gen)
        u = (xx - cx) * a.cos() + (yy - cy) * a.sin()
        v = -(xx - cx) * a.sin() + (yy - cy) * a.cos()
        m = torch.maximum(m, ((u / 5) ** 2 + (v / 2.2) ** 2 < 1).float())
    soil = F.interpolate(torch.randn(n, 3, 4, 4, generator=gen), size=(side, side), mode="bilinear")
    green = torch.tensor([-0.3, 0.8, -0.2]).view(1, 3, 1, 1)
    light = 0.6 + 0.8 * torch.rand(n, 1, 1, 1, generator=gen)
    x = light * (m[:, None] * green + (1 - m[:, None]) * 0.8 * soil)
    return x + 0.35 * torch.randn(x.shape, generator=gen), m


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.GroupNorm(4, c_out), nn.SiLU())


class LeafNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down = block(3, c)
        self.deep = nn.Sequential(block(c, 2 * c), block(2 * c, 2 * c))
        self.up = block(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.deep(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([a, b], 1))).squeeze(1)


def segmentation_loss(logits, mask):
    p = logits.sigmoid()
    dice = 1 - (2 * (p * mask).sum((1, 2)) + 1) / (p.sum((1, 2)) + mask.sum((1, 2)) + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()


def linear_plan(plan):
    def factor(step):
        if step < plan.warmup:
            return (step + 1) / plan.warmup
        return max(0.0, (plan.updates - step) / (plan.updates - plan.warmup))

    return factor


def main():
    plan = Plan()
    gen = torch.Generator().manual_seed(340)
    images, masks = leaves(600, plan.side, gen)
    v_images, v_masks = leaves(150, plan.side, gen)
    model = LeafNet()
    opt = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, linear_plan(plan))
    running = 0.0
    for micro in range(plan.updates * plan.accumulate):
        pick = torch.randint(0, len(images), (plan.micro_batch,), generator=gen)
        loss = segmentation_loss(model(images[pick]), masks[pick])
        (loss / plan.accumulate).backward()
        running += loss.item() / plan.accumulate
        if (micro + 1) % plan.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            update = (micro + 1) // plan.accumulate
            if update % 12 == 0:
                print(f"update {update} loss {running:.4f} lr {sched.get_last_lr()[0]:.6f}")
            running = 0.0
        sched.step()
    with torch.no_grad():
        print(f"RESULT {segmentation_loss(model(v_images), v_masks).item():.5f}")


if __name__ == "__main__":
    main()
