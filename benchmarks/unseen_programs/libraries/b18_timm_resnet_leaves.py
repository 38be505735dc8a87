"""Classify leaf outlines with a small timm ResNet, mixup and an averaged copy of the weights."""
import torch

torch.set_num_threads(1)
torch.manual_seed(15)

import timm
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES, EPOCHS = 32, 5, 5


def leaves(n, seed):
    """Filled star-like shapes; the class is the number of lobes less three."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    axis = torch.linspace(-1.2, 1.2, SIZE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    shift = 0.15 * torch.randn(2, n, 1, 1, generator=g)
    dx, dy = xx - shift[0], yy - shift[1]
    angle = torch.atan2(dy, dx) + 6.28 * torch.rand(n, 1, 1, generator=g)
    size = 0.6 + 0.2 * torch.rand(n, 1, 1, generator=g)
    edge = size * (1 + 0.4 * torch.cos((y[:, None, None] + 3) * angle))
    img = torch.sigmoid(20 * (edge - (dx ** 2 + dy ** 2).sqrt()))
    img = img[:, None].repeat(1, 3, 1, 1)
    return img + 0.2 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, right, count = 0.0, 0, 0
    for x, y in loader:
        out = model(x)
        total += nn.functional.cross_entropy(out, y, reduction="sum").item()
        right += (out.argmax(1) == y).sum().item()
        count += len(y)
    return total / count, right / count


def main():
    model = timm.create_model("test_resnet", num_classes=CLASSES)
    ema = ModelEmaV2(model, decay=0.9999)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS, lr_min=1e-5)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.05, num_classes=CLASSES)
    criterion = SoftTargetCrossEntropy()
    train = DataLoader(
        TensorDataset(*leaves(1280, 1)), batch_size=64, shuffle=True, drop_last=True
    )
    valid = DataLoader(TensorDataset(*leaves(400, 2)), batch_size=200)

    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for x, y in train:
            x, target = mixup(x, y)
            loss = criterion(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            total += loss.item()
        scheduler.step(epoch + 1)
        print(f"epoch {epoch} train loss {total / len(train):.4f}")
    loss, acc = evaluate(ema.module, valid)
    print(f"accuracy of the averaged weights {acc:.3f}")
    print(f"RESULT {loss:.4f}")


if __name__ == "__main__":
    main()
