"""Semi-supervised mean teacher with timm's averaged model and adaptive gradient clipping."""
import torch

torch.set_num_threads(1)
torch.manual_seed(46)

import timm
from timm.utils import ModelEmaV3, adaptive_clip_grad
from torch import nn

SIZE, CLASSES = 24, 4


def glyphs(n, seed):
    """Strokes at one of four angles, jittered; only a part of them will have labels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    axis = torch.linspace(-1, 1, SIZE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = (y * torch.pi / 4 + 0.1 * torch.randn(n, generator=g))[:, None, None]
    offset = 0.3 * torch.randn(n, 1, 1, generator=g)
    across = xx * angle.cos() + yy * angle.sin() - offset
    img = torch.exp(-(across ** 2) / 0.02)
    return (img + 0.25 * torch.randn(n, SIZE, SIZE, generator=g))[:, None], y


def perturb(x):
    shift = torch.randint(-2, 3, (2,)).tolist()
    x = torch.roll(x, shift, dims=(2, 3)) + 0.2 * torch.randn_like(x)
    return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1))


def main():
    student = timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, patch_size=6, in_chans=1, num_classes=CLASSES,
        embed_dim=48, depth=2, num_heads=4, proj_drop_rate=0.1,
    )
    teacher = ModelEmaV3(student, decay=0.98, use_warmup=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=200)
    x_lab, y_lab = glyphs(160, 1)
    x_free, _ = glyphs(1600, 2)
    x_val, y_val = glyphs(500, 3)

    for step in range(200):
        student.train()
        teacher.module.train()
        a, b = torch.randperm(len(x_lab))[:24], torch.randperm(len(x_free))[:32]
        supervised = nn.functional.cross_entropy(student(perturb(x_lab[a])), y_lab[a])
        with torch.no_grad():
            aim = (teacher.module(perturb(x_free[b])) / 0.5).softmax(dim=1)
        guess = student(perturb(x_free[b])).softmax(dim=1)
        ramp = min(1.0, step / 80) ** 2
        consistency = (guess - aim).pow(2).sum(dim=1).mean()
        loss = supervised + 2.0 * ramp * consistency
        optimizer.zero_grad()
        loss.backward()
        adaptive_clip_grad(student.parameters(), clip_factor=0.05)
        optimizer.step()
        schedule.step()
        teacher.update(student, step=step)
        if step % 40 == 39:
            print(f"step {step} supervised {supervised.item():.4f} "
                  f"consistency {consistency.item():.4f} decay {teacher.get_decay(step):.3f}")
    teacher.module.eval()
    with torch.no_grad():
        error = (teacher.module(x_val).argmax(1) != y_val).float().mean().item()
    print(f"RESULT {error:.4f}")


if __name__ == "__main__":
    main()
