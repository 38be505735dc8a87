"""A scaler on a model that was cast to fp16."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, loss_of

CODE = "FP16_PARAMETERS_WITH_SCALER"


def broken() -> None:
    model = classifier().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images.half()).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def mended() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
