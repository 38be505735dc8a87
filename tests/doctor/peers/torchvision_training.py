"""A small training in the style of torchvision's references for classification."""

import io

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, default_collate
from torchvision import models
from torchvision.datasets import FakeData
from torchvision.transforms import v2


def train_one_epoch(model, criterion, optimizer, loader, average, scaler) -> None:
    model.train()
    for step, (images, targets) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16, enabled=scaler is not None):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 2 == 0:
            average.update_parameters(model)
        print(loss.item().hex())  # noqa: T201  # what the test compares


def evaluate(model, criterion, loader) -> None:
    model.eval()
    with torch.inference_mode():
        for images, targets in loader:
            print(criterion(model(images), targets).item().hex())  # noqa: T201


def main() -> None:
    torch.manual_seed(3)
    prepare = v2.Compose(
        [v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    data = FakeData(24, (3, 32, 32), 4, prepare)
    mixup = v2.MixUp(num_classes=4, alpha=0.2)

    def collate(samples):
        return mixup(*default_collate(samples))

    training = DataLoader(data, 6, shuffle=True, collate_fn=collate)
    testing = DataLoader(data, 6)
    model = models.shufflenet_v2_x0_5(num_classes=4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu")
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[1])
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for epoch in range(2):
        train_one_epoch(model, criterion, optimizer, training, average, scaler)
        schedule.step()
        evaluate(model, criterion, testing)
        evaluate(average, criterion, testing)
        parts = {"model": model, "optimizer": optimizer, "lr_scheduler": schedule, "scaler": scaler}
        states = {name: each.state_dict() for name, each in parts.items()}
        torch.save({**states, "epoch": epoch}, io.BytesIO())


main()
