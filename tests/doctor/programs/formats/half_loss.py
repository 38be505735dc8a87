"""The loss of fp16 outputs, outside of autocast."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "LOSS_IN_FP16"


def train(*, widened: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        loss = functional.cross_entropy(outputs.float() if widened else outputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(widened=False)


def mended() -> None:
    train(widened=True)


def healthy_half_mean_under_autocast() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    for images, _ in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = model(images).pow(2).mean()
        assert loss.dtype == torch.float16
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 65536


def train_by_squares(loss_of, targets=(500.0, 500.0, 500.0)) -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, _ in batches(4):
        wanted = torch.tensor([targets] * 8)
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        scaler.scale(loss_of(outputs, wanted.to(outputs.dtype))).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_mean_beyond_fp16_whose_root_hides_it_from_the_scaler() -> None:
    train_by_squares(lambda outputs, targets: functional.mse_loss(outputs, targets).sqrt())


def broken_by_squares_beyond_fp16() -> None:
    train_by_squares(lambda outputs, targets: ((outputs - targets) * (outputs - targets)).mean())


def healthy_by_squares_in_fp32() -> None:
    train_by_squares(lambda outputs, targets: functional.mse_loss(outputs.float(), targets).sqrt())


def broken_by_a_mean_within_fp16_of_squares_beyond_it() -> None:
    few = (300.0, 0.0, 0.0)
    train_by_squares(lambda outputs, targets: functional.mse_loss(outputs, targets).sqrt(), few)
