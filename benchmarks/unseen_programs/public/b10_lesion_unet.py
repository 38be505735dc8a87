"""Trains a small U-Net to segment lesions in synthetic scans."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(16)

CONTEXT = {
    "training": {"num_epochs": 8, "batch_size": 12, "initial_lr": 0.02,
                 "scheduler": {"name": "ExponentialLR", "gamma": 0.8}},
    "loss": {"dice": 1.0, "bce": 1.0},
    "size": 24,
}


def scans(n, size):
    grid = torch.arange(size).float()
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    image = torch.zeros(n, 1, size, size)
    mask = torch.zeros(n, 1, size, size)
    for i in range(n):
        field = 0.04 * (torch.randn(()) * xx + torch.randn(()) * yy)
        image[i, 0] = field + 0.35 * torch.randn(size, size)
        for kind in torch.randint(0, 2, (3,)).tolist():
            cx, cy = 3 + torch.rand(2) * (size - 6)
            r = 2.0 + 2.0 * torch.rand(())
            d = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()
            if kind:
                image[i, 0] += 1.2 * (d < r).float()
                mask[i, 0] = torch.maximum(mask[i, 0], (d < r).float())
            else:
                image[i, 0] += 1.2 * ((d < r) & (d > r - 1.2)).float()
    return image, mask


def double_conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
                         nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


class Unet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.d1, self.d2, self.d3 = double_conv(1, w), double_conv(w, 2 * w), double_conv(2 * w, 4
                                                                                          * w)
        self.u2, self.u1 = double_conv(6 * w, 2 * w), double_conv(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        return self.out(self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


def dice_loss(prob, target, eps=1.0):
    inter = (prob * target).sum((1, 2, 3))
    return (1 - (2 * inter + eps) / (prob.sum((1, 2, 3)) + target.sum((1, 2, 3)) + eps)).mean()


def criterion(logits, target, weights):
    return (weights["dice"] * dice_loss(logits.sigmoid(), target)
            + weights["bce"] * F.binary_cross_entropy_with_logits(logits, target))


def cmd_train(context):
    cfg = context["training"]
    x, y = scans(216, context["size"])
    x_val, y_val = scans(60, context["size"])
    model = Unet()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["initial_lr"], momentum=0.9)
    scheduler = getattr(torch.optim.lr_scheduler, cfg["scheduler"]["name"])(
        optimizer, gamma=cfg["scheduler"]["gamma"])
    for epoch in range(1, cfg["num_epochs"] + 1):
        lr = scheduler.get_last_lr()[0]
        model.train()
        train_total, steps = 0.0, 0
        for idx in torch.randperm(len(x)).split(cfg["batch_size"]):
            loss = criterion(model(x[idx]), y[idx], context["loss"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_total += loss.item()
            steps += 1
            scheduler.step()
        model.eval()
        with torch.no_grad():
            val_logits = model(x_val)
            val_loss = criterion(val_logits, y_val, context["loss"]).item()
            dice = 1 - dice_loss((val_logits > 0).float(), y_val).item()
        print(f"Epoch {epoch} learning rate: {lr:.3e} training loss: {train_total / steps:.4f} "
              f"validation loss: {val_loss:.4f} dice: {dice:.3f}")
    return val_loss


print("RESULT", round(cmd_train(CONTEXT), 5))
