"""A small training with timm's library: model, loader, optimizer, schedule, scaler, averages."""

import tempfile
from contextlib import closing

import timm
import torch
from timm import utils
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2

EPOCHS, UPDATES = 2, 5


def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(UPDATES):
        images = torch.randn(4, 3, 32, 32, generator=generator)
        yield images, torch.randint(0, 5, (4,), generator=generator)


def main() -> None:
    utils.random_seed(7, 0)
    model = timm.create_model("test_vit", num_classes=5, img_size=32, drop_path_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule, _ = create_scheduler_v2(
        optimizer, num_epochs=EPOCHS, updates_per_epoch=UPDATES, warmup_epochs=1
    )
    average = utils.ModelEmaV3(model, decay=0.99)
    scaler = utils.NativeScaler(device="cpu")
    mixup = Mixup(mixup_alpha=0.2, num_classes=5)
    criterion = SoftTargetCrossEntropy()
    evaluate = torch.nn.CrossEntropyLoss()
    updates = 0
    with closing(tempfile.TemporaryFile()) as file:
        saver = {"optimizer": optimizer, "state_dict": model, scaler.state_dict_key: scaler}
        for epoch in range(EPOCHS):
            model.train()
            for images, labels in batches():
                mixed, targets = mixup(images, labels)
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = criterion(model(mixed), targets)
                optimizer.zero_grad()
                scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
                average.update(model)
                updates += 1
                schedule.step_update(num_updates=updates)
                print(loss.item().hex())  # noqa: T201  # what the test compares
            model.eval()
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
                for images, labels in batches():
                    print(evaluate(average.module(images), labels).item().hex())  # noqa: T201
            torch.save({name: each.state_dict() for name, each in saver.items()}, file)
            schedule.step(epoch + 1)


main()
