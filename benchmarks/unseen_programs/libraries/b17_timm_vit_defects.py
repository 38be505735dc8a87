"""Classify surface defects with a small timm ViT and timm's cosine schedule with warmup."""
import torch

torch.set_num_threads(1)
torch.manual_seed(10)

import timm
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 32, 4
EPOCHS, WARMUP_EPOCHS = 6, 1


def defects(n, seed):
    """Grain noise with a scratch (two directions), a dent or no defect."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    axis = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    cx, cy = (8 + 16 * torch.rand(2, n, 1, 1, generator=g))
    dx, dy = xx - cx, yy - cy
    inside = (dx ** 2 + dy ** 2) < 100
    up = torch.exp(-((dx - dy) ** 2) / 4) * inside
    down = torch.exp(-((dx + dy) ** 2) / 4) * inside
    dent = torch.exp(-(dx ** 2 + dy ** 2) / 30)
    kinds = torch.stack([torch.zeros_like(up), up, down, dent], dim=1)
    img = kinds[torch.arange(n), y] * 1.5
    return (img + 0.5 * torch.randn(n, SIZE, SIZE, generator=g))[:, None], y


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses, top1 = AverageMeter(), AverageMeter()
    for x, y in loader:
        out = model(x)
        losses.update(nn.functional.cross_entropy(out, y).item(), len(y))
        top1.update(accuracy(out, y)[0].item(), len(y))
    model.train()
    return losses.avg, top1.avg


def main():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, patch_size=8, in_chans=1, num_classes=CLASSES,
        embed_dim=48, depth=3, num_heads=3, drop_path_rate=0.05,
    )
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    train = DataLoader(TensorDataset(*defects(1600, 1)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*defects(400, 2)), batch_size=200)
    steps_per_epoch = len(train)
    scheduler = CosineLRScheduler(
        optimizer,
        t_initial=EPOCHS * steps_per_epoch,
        lr_min=1e-5,
        warmup_t=WARMUP_EPOCHS * steps_per_epoch,
        warmup_lr_init=1e-6,
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    num_updates = 0
    for epoch in range(EPOCHS):
        meter = AverageMeter()
        for x, y in train:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            num_updates += 1
            scheduler.step_update(num_updates=num_updates)
            meter.update(loss.item(), len(y))
        val_loss, top1 = validate(model, valid)
        print(f"epoch {epoch} train {meter.avg:.4f} valid {val_loss:.4f} top1 {top1:.1f}")
    print(f"RESULT {validate(model, valid)[0]:.4f}")


if __name__ == "__main__":
    main()
