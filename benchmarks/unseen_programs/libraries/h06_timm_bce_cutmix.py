"""Train a small timm EfficientNet on pattern tiles with CutMix, BCE targets and Lion."""
import torch

torch.set_num_threads(1)
torch.manual_seed(40)

import timm
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES, EPOCHS = 32, 4, 5


def tiles(n, seed):
    """Stripes, bars, checks or dots with random period, offset and contrast."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    axis = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    w = 2 * torch.pi / (6 + 6 * torch.rand(n, 1, 1, generator=g))
    ax = torch.sin(w * xx + 6.28 * torch.rand(n, 1, 1, generator=g))
    ay = torch.sin(w * yy + 6.28 * torch.rand(n, 1, 1, generator=g))
    kinds = torch.stack([ax, ay, (ax * ay).sign() * 0.7, (ax * ay).clamp(min=0) * 1.5], dim=1)
    img = kinds[torch.arange(n), y] * (0.6 + torch.rand(n, 1, 1, generator=g))
    img = img[:, None].repeat(1, 3, 1, 1)
    return img + 0.3 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    wrong, total, count = 0, 0.0, 0
    for x, y in loader:
        out = model(x).float()
        total += nn.functional.cross_entropy(out, y, reduction="sum").item()
        wrong += (out.argmax(1) != y).sum().item()
        count += len(y)
    return total / count, wrong / count


def main():
    model = timm.create_model("test_efficientnet", num_classes=CLASSES, drop_path_rate=0.05)
    nn.init.constant_(model.get_classifier().bias, -1.1)
    optimizer = create_optimizer_v2(model, opt="lion", lr=3e-4, weight_decay=0.3)
    train = DataLoader(
        TensorDataset(*tiles(1400, 1)), batch_size=50, shuffle=True, drop_last=True
    )
    valid = DataLoader(TensorDataset(*tiles(400, 2)), batch_size=200)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=EPOCHS, warmup_epochs=1, warmup_lr=1e-6,
        min_lr=1e-6, step_on_epochs=False, updates_per_epoch=len(train),
    )
    mixup = Mixup(
        mixup_alpha=0.2, cutmix_alpha=1.0, prob=0.6, switch_prob=0.5, mode="elem",
        label_smoothing=0.02, num_classes=CLASSES,
    )
    criterion = BinaryCrossEntropy(smoothing=0.0, target_threshold=0.2, sum_classes=True)
    updates = 0
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for x, y in train:
            x, target = mixup(x, y)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            loss = criterion(out.float(), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            scheduler.step_update(updates)
            total += loss.item()
        loss, error = evaluate(model, valid)
        print(f"epoch {epoch} train (mixed) {total / len(train):.3f} valid {loss:.3f} "
              f"error {error:.3f}")
    print(f"RESULT {evaluate(model, valid)[1]:.4f}")


if __name__ == "__main__":
    main()
