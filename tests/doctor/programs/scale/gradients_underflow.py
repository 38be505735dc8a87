"""fp16 autocast without a loss scale, and a loss with small gradients."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "GRADIENTS_UNDERFLOW"


def train(*, scaled: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for images, _ in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = model(images).float().square().mean() * 1e-6
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(scaled=False)


def mended() -> None:
    train(scaled=True)


def healthy_where_a_class_never_occurs() -> None:
    model = classifier()
    with torch.no_grad():
        model[3].bias[2] = -30.0  # Its gradient is 1e-14.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            logits = model(images)
        functional.cross_entropy(logits.float(), labels.clamp(max=1)).backward()
        optimizer.step()


class SquaredError(torch.autograd.Function):
    """A mean squared error that divides before or after the incoming gradient is multiplied in."""

    @staticmethod
    def forward(ctx, outputs, wide):
        ctx.save_for_backward(outputs.half())
        ctx.wide = wide
        return outputs.float().square().mean()

    @staticmethod
    def backward(ctx, gradient):
        (outputs,) = ctx.saved_tensors
        if ctx.wide:
            return outputs.float() * 2 / outputs.numel() * gradient, None
        slope = outputs * 1e-3 / outputs.numel()
        return (slope * gradient).float(), None


def train_with_its_own_backward(*, wide: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for images, _ in batches(4):
        optimizer.zero_grad()
        scaler.scale(SquaredError.apply(model(images) * 1e-3, wide)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_in_a_backward_of_its_own() -> None:
    train_with_its_own_backward(wide=False)


def healthy_backward_in_fp32() -> None:
    train_with_its_own_backward(wide=True)
